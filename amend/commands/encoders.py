"""``amend encoders``: ONNX files that turn raw inputs into the features of linear models."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from amend.client import Client
from amend.commands import output
from amend.commands.connection import After, Connection, Limit, Yes, command, confirm, option
from amend.responses import Encoder

app = typer.Typer(help="Manage the frozen encoders of models.", no_args_is_help=True)

Digest = Annotated[str, typer.Argument(help="Digest of the encoder: sha256:...")]

COLUMNS: output.Columns[Encoder] = {
    "digest": lambda encoder: encoder.digest,
    "features": lambda encoder: encoder.features,
    "trained on": lambda encoder: encoder.trained_on,
    "size": lambda encoder: encoder.size,
    "created": lambda encoder: output.format_time(encoder.created_at),
}


@command(app)
def upload(
    connection: Connection,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="ONNX file.")],
    trained_on: Annotated[
        Literal["other", "examples"],
        option(
            "--trained-on", "`examples` if the encoder was fitted on examples that Amend stores, otherwise `other`."
        ),
    ] = "other",
) -> None:
    """Upload an ONNX file, and print its digest, which a linear architecture names.

    Example: amend encoders upload all-minilm-l6-v2.onnx
    """
    found = connection.client.upload_encoder(file, trained_on=trained_on)
    connection.say(connection.response, found.digest)


@command(app, "list")
def list_(connection: Connection, limit: Limit = None, after: After = None) -> None:
    """List the encoders.

    Example: amend encoders list
    """
    connection.show_page(Client.encoders, COLUMNS, limit, after)


@command(app)
def show(connection: Connection, digest: Digest) -> None:
    """Show the inputs and outputs of an encoder.

    Example: amend encoders show sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    """
    connection.client.encoder(digest)
    connection.show(connection.response)


@command(app)
def delete(connection: Connection, digest: Digest, yes: Yes = False) -> None:
    """Delete an encoder that no model uses.

    Example: amend encoders delete sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    """
    confirm(f"Delete the encoder {digest}?", yes)
    connection.client.delete_encoder(digest)
    connection.say(None, f"Deleted {digest}.")
