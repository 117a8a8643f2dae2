"""The shape of dense experts, and their numbers of parameters."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """A dense model with gated MLPs, two norms per layer and no biases, such as a Llama. The head is not the embedding.

    Attributes:
        hidden: H.
        layers: L.
        intermediate: width of an MLP, M.
        vocabulary: V.
        key_value: width of the keys of all heads, K, and of the values; queries have width H.
        tied: whether the head is the embedding; a merged trunk has a head of its own.
        weight_bytes: bytes of a weight.
    """

    hidden: int
    layers: int
    intermediate: int
    vocabulary: int
    key_value: int
    tied: bool = False
    weight_bytes: int = 2

    @property
    def attention(self) -> int:
        """Parameters of a layer's attention: 2 H^2 + 2 H K."""
        return 2 * self.hidden * (self.hidden + self.key_value)

    @property
    def mlp(self) -> int:
        """Parameters of a layer's MLP: 3 H M."""
        return 3 * self.hidden * self.intermediate

    @property
    def layer(self) -> int:
        """Parameters of a layer, with its two norms."""
        return self.attention + self.mlp + 2 * self.hidden

    @property
    def active(self) -> int:
        """Parameters that a token's pass multiplies, without embedding and head."""
        return self.layers * (self.attention + self.mlp)

    @property
    def trunk(self) -> int:
        """Parameters of a trunk: everything but the MLPs, with a head of its own."""
        return self.layers * (self.attention + 2 * self.hidden) + 2 * self.vocabulary * self.hidden + self.hidden

    @property
    def expert(self) -> int:
        """Parameters of an expert."""
        head = self.vocabulary * self.hidden if self.tied else 0
        return self.trunk - head + self.layers * self.mlp

    @property
    def triangle(self) -> int:
        """Integers of the upper triangle of an H x H gram: H (H + 1) / 2."""
        return self.hidden * (self.hidden + 1) // 2

    @property
    def square_bytes(self) -> int:
        """Bytes of a float64 gram: 8 H^2."""
        return 8 * self.hidden**2
