"""The table of uploaded encoders. Their files are in the store."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from core.clock import now
from core.database import Base, Json
from core.tables.documents import TensorDocument


class UploadedEncoder(Base):
    """An ONNX file that models use as their frozen encoder."""

    __tablename__ = "encoders"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the file, hexadecimal."""
    size: Mapped[int] = mapped_column(Integer)
    """Bytes of the file."""
    inputs: Mapped[list[TensorDocument]] = mapped_column(Json)
    outputs: Mapped[list[TensorDocument]] = mapped_column(Json)
    features: Mapped[int] = mapped_column(Integer)
    trained_on: Mapped[str] = mapped_column(String(8))
    """`other` or `examples`."""
    created_at: Mapped[datetime] = mapped_column(default=now)
