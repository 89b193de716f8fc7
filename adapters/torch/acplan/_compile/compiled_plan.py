"""The plan of one graph of torch.compile."""

import dataclasses
from typing import Any

from torch.fx import GraphModule

from acplan._files.verification import Verification, VerifiedOperator
from acplan._graphs.graph_memory import run_step


@dataclasses.dataclass(frozen=True)
class CompiledPlan:
    """The plan of one graph: data of the files `acplan.remat` and `acplan.graph`, and the two
    graphs that PyTorch made from it."""

    name: str
    data: dict[str, Any]
    graph: dict[str, Any]
    forward: GraphModule
    backward: GraphModule
    num_fwd_outputs: int

    @property
    def status(self) -> str:
        return str(self.data["status"])

    @property
    def peak_bytes(self) -> int:
        """The predicted peak of the graphs as they are, node by node."""
        return int(self.data["peak_bytes"])

    @property
    def recompute_ms(self) -> float:
        return float(self.data["recompute_ms"])

    @property
    def stall_ms(self) -> float:
        """The time that a step waits for copies to the host and back."""
        return float(self.data.get("stall_ms", 0))

    @property
    def bound_ms(self) -> float:
        """A number that the recomputation, and waiting, of no choice within the budget is
        below."""
        return float(self.data["bound_ms"])

    @property
    def saved(self) -> tuple[str, ...]:
        """The names of the nodes that forward saves."""
        return tuple(self.data["saved"])

    @property
    def moved_names(self) -> tuple[str, ...]:
        """The names of the saved nodes that wait in the host's memory."""
        return tuple(move["buffer"] for move in self.data.get("moved", ()))

    def verify(self) -> Verification:
        """Returns the predicted memory beside that of the two graphs, run node by node on fake
        tensors."""
        listed = {node["name"] for node in self.graph["nodes"]}
        forward, backward = run_step(
            self.forward, self.backward, self.num_fwd_outputs, self.graph["held_bytes"]
        )
        return Verification(
            tuple(VerifiedOperator(s["node"], s["bytes"]) for s in self.data["memory"]),
            tuple(o for o in (*forward, *backward) if o.name in listed),
        )

    def __repr__(self) -> str:
        return (
            f"<CompiledPlan {self.name}: {self.status}, peak {self.peak_bytes:,} bytes, "
            f"{self.recompute_ms:.3f} ms again"
            + (f", {self.stall_ms:.3f} ms waiting>" if self.moved_names else ">")
        )
