"""The base class of response bodies."""

from pydantic import BaseModel, ConfigDict


class ResponseModel(BaseModel):
    """Base of all responses. Docstrings of fields become their descriptions in /docs, and in the client."""

    model_config = ConfigDict(use_attribute_docstrings=True, from_attributes=True)
