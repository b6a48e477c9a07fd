"""Models as NVIDIA's ModelOpt exports them: the program of a child process, in whichever environment has ModelOpt.

    export.py < JOBS > RESULTS            both JSON; what the libraries print goes to standard error

A job makes one model, or loads it from a folder, and exports it to TensorRT-LLM's format once per split:

    name          of the model
    source        the folder of the Hugging Face model, which is made there unless `family` is null
    family        "Llama", …: the class of its config, and
    values        what is in that
    dtype         "bfloat16", …
    alike         whether all that is fused gets the same scales: weights have one maximum, and up_proj is -gate_proj
    decoder       what ModelOpt calls this kind of model
    config        whether ModelOpt writes config.json alone; for the other kinds it asks an installed TensorRT-LLM
    quantization  null, or {"config": "FP8_DEFAULT_CFG", "kv_cache": null or "FP8_KV_CFG", "block_size": null or 64}
    published     the folder for ModelOpt's unified Hugging Face export of the quantised model
    splits        [[tp, pp, dtype of what isn't quantised, folder for the checkpoint], …]

Models are random, and the same job makes the same one. A result is {"name": …, "error": null or what was raised}.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import traceback
from typing import Any

import modelopt.torch.export.model_config_export as export
import modelopt.torch.quantization as mtq
import torch
import transformers
from modelopt.torch.export import export_hf_checkpoint, export_tensorrt_llm_checkpoint

TEXTS, TOKENS = 4, 32
"""What is read to calibrate."""


def main() -> None:
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    outcome = []
    for job in json.load(sys.stdin):
        error = None
        try:
            run(job)
        except Exception:  # the tests of this model report it, and the others go on
            error = traceback.format_exc()
        outcome.append({"name": job["name"], "error": error})
    with results:
        json.dump(outcome, results)


def run(job: dict[str, Any]) -> None:
    torch.manual_seed(7)
    if job["family"] is not None:
        random_model(job).save_pretrained(job["source"])
    model = transformers.AutoModelForCausalLM.from_pretrained(job["source"], dtype=getattr(torch, job["dtype"])).eval()
    if job["quantization"] is not None:
        model = quantized(model, job["quantization"])
        export_hf_checkpoint(copy.deepcopy(model), export_dir=job["published"])
    for tp, pp, dtype, out in job["splits"]:
        own = export.convert_to_tensorrt_llm_config
        if not job["config"]:
            export.convert_to_tensorrt_llm_config = name_of_file
        try:
            with torch.inference_mode():
                export_tensorrt_llm_checkpoint(
                    copy.deepcopy(model),  # exporting changes it
                    job["decoder"],
                    getattr(torch, dtype),
                    export_dir=out,
                    inference_tensor_parallel=tp,
                    inference_pipeline_parallel=pp,
                )
        finally:
            export.convert_to_tensorrt_llm_config = own


def random_model(job: dict[str, Any]) -> Any:
    """Norms and biases are random too, and norms make some channels wider than others, which calibration looks for."""
    config = getattr(transformers, f"{job['family']}Config")(**job["values"])
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.randn_like(parameter)
            parameter.copy_(values.exp() if parameter.dim() == 1 else values / 4)
        if job["alike"]:
            parameters = dict(model.named_parameters())
            for name, parameter in parameters.items():
                if parameter.dim() > 1:
                    parameter.clamp_(-0.5, 0.5)
                for gate, up in (("gate_proj", "up_proj"), (".w1.", ".w3.")):
                    if gate in name:
                        parameters[name.replace(gate, up)].copy_(-parameter)
    return model.to(getattr(torch, job["dtype"]))


def quantized(model: Any, quantization: dict[str, Any]) -> Any:
    config = copy.deepcopy(getattr(mtq, quantization["config"]))
    if quantization["block_size"]:
        set_block_size(config, quantization["block_size"])
    if quantization["kv_cache"]:
        config["quant_cfg"] += getattr(mtq, quantization["kv_cache"])["quant_cfg"]

    def calibrate(model: Any) -> None:
        with torch.no_grad():
            for text in torch.randint(0, model.config.vocab_size, (TEXTS, TOKENS)):
                model(text[None])

    return mtq.quantize(model, config, forward_loop=calibrate)


def set_block_size(config: Any, size: int) -> None:
    """Wherever the config names one."""
    if isinstance(config, dict):
        if -1 in (config.get("block_sizes") or ()):
            config["block_sizes"][-1] = size
        config = list(config.values())
    if isinstance(config, list):
        for value in config:
            set_block_size(value, size)


def name_of_file(model_config: Any, quant_config: Any, hf_config: Any = None) -> dict[str, Any]:
    """Instead of a config.json: what says which rank's tensors these are."""
    mapping = {"world_size": model_config.tensor_parallel * model_config.pipeline_parallel}
    return {"rank": model_config.rank, "mapping": mapping, "decoder": "", "quantization": quant_config}


if __name__ == "__main__":
    main()
