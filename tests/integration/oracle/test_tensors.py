"""NVIDIA's own export is what our conversion must give, to the byte.

For the same model, ours and the one that `modelopt.torch.export.export_tensorrt_llm_checkpoint` writes have the same
ranks, names, dtypes, shapes and bytes, however the model is split; what differs by intent is listed in conventions.py.
"""

from pathlib import Path

import pytest

from builder.errors import PlanRefused
from builder.model.layout import Split
from tests.integration.oracle.comparison import Tensors, converted, differences, same_bytes, spec_of, staged
from tests.integration.oracle.conftest import Exports
from tests.integration.oracle.conventions import TENSORS
from tests.integration.oracle.models import DENSE, EXPERTS, MODELS, SMOLLM2, Model

pytestmark = pytest.mark.timeout(1800)  # the second environment may have to be fetched first

ROUNDED = ("llama fp8", "llama fp8-kv", "mixtral fp8", "llama int4-awq", "llama w4a8-awq", "gemma int4-awq")
"""Where ModelOpt quantises the same weights with other scales for its two exports: see test_rounding.py."""

UNEVEN = [(model, 4 if model is SMOLLM2 else 3) for model in (SMOLLM2, *DENSE, *EXPERTS) if model.family != "Phi3"]


def settled(model: Model, ours: list[Tensors], theirs: list[Tensors], tp: int) -> list[list[str]]:
    """What differs on each rank, conventions apart."""
    for convention in TENSORS:
        if convention.applies(model):
            convention.settle(ours, theirs, tp)
    return [differences(own, other) for own, other in zip(ours, theirs, strict=True)]


@pytest.mark.parametrize(
    ("model", "tp", "pp"),
    [(model, tp, pp) for model in MODELS if model.name not in ROUNDED for tp, pp in model.splits],
    ids=str,
)
def test_every_tensor_of_every_rank_is_the_one_that_modelopt_exports(
    model: Model, tp: int, pp: int, exports: Exports, tmp_path: Path
) -> None:
    theirs = exports.checkpoint(model, tp, pp).ranks
    split = Split(tp, pp, use_parallel_embedding=True)
    ours = converted(exports.published(model), tmp_path / "ours", split, model.exported_dtype).ranks
    assert len(ours) == tp * pp
    assert settled(model, ours, theirs, tp) == [[]] * tp * pp


@pytest.mark.parametrize(("model", "tp", "pp"), [(model, tp, pp) for model, pp in UNEVEN for tp in model.tp], ids=str)
def test_uneven_stages_hold_the_layers_that_tensorrt_llm_gives_them(
    model: Model, tp: int, pp: int, exports: Exports, tmp_path: Path
) -> None:
    theirs = staged(exports.checkpoint(model, tp).ranks, pp)
    split = Split(tp, pp, use_parallel_embedding=True)
    ours = converted(exports.published(model), tmp_path / "ours", split, model.exported_dtype).ranks
    assert settled(model, ours, theirs, tp) == [[]] * tp * pp


@pytest.mark.parametrize(
    ("model", "moe_tp", "moe_ep"),
    [(model, moe_tp, 6 // moe_tp) for model in EXPERTS for moe_tp in model.tp[:-1]],
    ids=str,
)
def test_experts_are_shared_out_whole_where_that_is_asked_for(
    model: Model, moe_tp: int, moe_ep: int, exports: Exports, tmp_path: Path
) -> None:
    """Tensor rank r is in group r % moe_ep and holds part r // moe_ep (Mapping in tensorrt_llm/mapping.py)."""
    split = Split(6, 2, moe_tp=moe_tp, moe_ep=moe_ep, use_parallel_embedding=True)
    ours = converted(exports.published(model), tmp_path / "ours", split).ranks
    theirs, cut = exports.checkpoint(model, 6, 2).ranks, exports.checkpoint(model, moe_tp, 2).ranks
    for rank, tensors in enumerate(theirs):
        stage, tensor_rank = divmod(rank, 6)
        for name, part in cut[stage * moe_tp + tensor_rank // moe_ep].items():
            if part.dim() == 3:
                tensors[name] = part.chunk(moe_ep)[tensor_rank % moe_ep]
    assert settled(model, ours, theirs, 6) == [[]] * 12


@pytest.mark.parametrize("model", [model for model in DENSE if not model.family.startswith("Gemma")], ids=str)
def test_an_embedding_that_is_not_split_is_whole_on_every_rank(model: Model, exports: Exports, tmp_path: Path) -> None:
    name = "transformer.vocab_embedding.weight"
    [whole] = exports.checkpoint(model).ranks
    for tensors in converted(exports.published(model), tmp_path / "ours", Split(3), model.exported_dtype).ranks:
        assert same_bytes(tensors[name], whole[name])


@pytest.mark.parametrize("model", [SMOLLM2, *DENSE, *EXPERTS], ids=str)
def test_every_number_of_ranks_that_we_allow_is_compared(model: Model, exports: Exports) -> None:
    spec = spec_of(exports.published(model))

    def allowed(tp: int) -> bool:
        try:
            Split(tp).check(spec)
        except PlanRefused:
            return False
        return True

    assert set(model.tp) == {tp for tp in range(1, spec.num_attention_heads + 1) if allowed(tp)}
