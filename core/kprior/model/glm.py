"""The interface of generalised linear models."""

from torch import Tensor, nn


class Glm(nn.Module):
    """f = W phi(x) with fixed features phi, the last of which is the constant 1: the bias is the last column of W."""

    weight: nn.Parameter
    blur: float = 0.0
    """Largest possible difference between the features of a row in one batch and those of the same row in another."""

    def features(self, z: Tensor) -> Tensor:
        """phi: encoded inputs (n, ...) -> (n, D), the last column 1."""
        raise NotImplementedError

    def forward(self, z: Tensor) -> Tensor:
        return self.features(z) @ self.weight.T
