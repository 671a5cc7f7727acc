"""The trained weights as a Hugging Face folder with the tensor names of the Laguna releases, and the proof that it is one.

    python3 python/tiny/export.py --weights weights.safetensors --tokenizer FOLDER --out FOLDER [--check]

weights.safetensors already holds on-disk names (train.py writes it); --check loads the folder with transformers and
compares float32 logits with this repository's own forward pass.
"""
import argparse
import json
import pathlib
import shutil

import make_tokenizer


def hf_config(c):
    layers = len(c.heads)
    kinds = ["full_attention" if c.full(i) else "sliding_attention" for i in range(layers)]
    rope = {"full_attention": {"rope_type": "yarn", "rope_theta": c.full_theta, "factor": c.yarn_factor,
                               "original_max_position_embeddings": c.yarn_original, "beta_fast": c.beta_fast,
                               "beta_slow": c.beta_slow, "attention_factor": c.attention_factor,
                               "partial_rotary_factor": c.full_rotary / c.head_dim},
            "sliding_attention": {"rope_type": "default", "rope_theta": c.window_theta, "partial_rotary_factor": 1.0}}
    return {"architectures": ["LagunaForCausalLM"], "model_type": "laguna", "vocab_size": c.vocab_size,
            "hidden_size": c.hidden, "intermediate_size": c.dense, "num_hidden_layers": layers,
            "num_attention_heads": c.heads[0], "num_attention_heads_per_layer": list(c.heads),
            "num_key_value_heads": c.kv_heads, "head_dim": c.head_dim, "max_position_embeddings": c.context,
            "attention_bias": False, "attention_dropout": 0.0, "rms_norm_eps": c.eps, "num_experts": c.experts,
            "num_experts_per_tok": c.top_k, "norm_topk_prob": True, "moe_intermediate_size": c.expert,
            "shared_expert_intermediate_size": c.expert, "router_aux_loss_coef": 0.0, "bos_token_id": 2,
            "eos_token_id": [2, 24], "pad_token_id": 9, "tie_word_embeddings": False, "use_cache": True,
            "dtype": "bfloat16", "hidden_act": "silu", "gating": "per-head", "sliding_window": c.window,
            "rope_parameters": rope, "layer_types": kinds, "mlp_layer_types": ["dense"] + ["sparse"] * (layers - 1),
            "moe_apply_router_weight_on_input": False, "moe_routed_scaling_factor": c.routed_scale,
            "moe_router_logit_softcapping": 0.0}


ATTENTION = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj", "g": "g_proj", "q_norm": "q_norm", "k_norm": "k_norm"}


def to_disk(w, c):
    """{on-disk name: tensor}: BF16, the router bias F32."""
    import torch
    out = {"model.embed_tokens.weight": w["embed"], "lm_head.weight": w["head"], "model.norm.weight": w["norm"]}
    for i in range(len(c.heads)):
        base, p = f"model.layers.{i}.", f"{i}."
        out[base + "input_layernorm.weight"] = w[p + "input_norm"]
        out[base + "post_attention_layernorm.weight"] = w[p + "post_norm"]
        for name, disk in ATTENTION.items():
            out[f"{base}self_attn.{disk}.weight"] = w[p + name]
        for part in ("gate", "up", "down"):
            stack = w[p + part]
            if i == 0:
                out[f"{base}mlp.{part}_proj.weight"] = stack[0]
                continue
            for e in range(c.experts):
                out[f"{base}mlp.experts.{e}.{part}_proj.weight"] = stack[e]
            out[f"{base}mlp.shared_expert.{part}_proj.weight"] = stack[c.experts]
        if i > 0:
            out[base + "mlp.gate.weight"] = w[p + "router"]
    out = {n: t.detach().to(torch.bfloat16).cpu().contiguous() for n, t in out.items()}
    for i in range(1, len(c.heads)):
        bias = w[f"{i}.bias"].detach()
        out[f"model.layers.{i}.mlp.experts.e_score_correction_bias"] = (bias - bias.mean()).float().cpu().contiguous()
    return out


def from_disk(tensors, c, device):
    """The inverse of to_disk, in float32."""
    import torch
    t = {n: x.float().to(device) for n, x in tensors.items()}
    w = {"embed": t["model.embed_tokens.weight"], "head": t["lm_head.weight"], "norm": t["model.norm.weight"]}
    for i in range(len(c.heads)):
        base, p = f"model.layers.{i}.", f"{i}."
        w[p + "input_norm"], w[p + "post_norm"] = t[base + "input_layernorm.weight"], t[base + "post_attention_layernorm.weight"]
        for name, disk in ATTENTION.items():
            w[p + name] = t[f"{base}self_attn.{disk}.weight"]
        for part in ("gate", "up", "down"):
            names = [f"{base}mlp.{part}_proj.weight"] if i == 0 else [
                f"{base}mlp.experts.{e}.{part}_proj.weight" for e in range(c.experts)] + [
                f"{base}mlp.shared_expert.{part}_proj.weight"]
            w[p + part] = torch.stack([t[n] for n in names])
        if i > 0:
            w[p + "router"] = t[base + "mlp.gate.weight"]
            w[p + "bias"] = t[base + "mlp.experts.e_score_correction_bias"]
    return w


def write_folder(tensors, c, tokenizer_folder, out):
    from safetensors.torch import save_file
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(hf_config(c), indent=1) + "\n")
    (out / "generation_config.json").write_text(json.dumps(
        {"bos_token_id": 2, "eos_token_id": [2, 24], "pad_token_id": 9, "do_sample": False}, indent=1) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(pathlib.Path(tokenizer_folder) / name, out / name)


def check(folder, c, prompts, expected=None):
    """Largest float32 logit difference to transformers over the prompts; optionally writes transformers' logits."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import LagunaForCausalLM

    import decode
    theirs = LagunaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    theirs.config._experts_implementation = "eager"
    ours = decode.Decoder(c, from_disk(load_file(folder / "model.safetensors"), c, "cpu"), torch.float32)
    worst, kept = 0.0, {}
    for i, ids in enumerate(prompts):
        with torch.no_grad():
            reference = theirs(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
        mine = ours.logits(torch.tensor([ids]))[0]
        worst = max(worst, (mine - reference).abs().max().item())
        kept[f"tokens.{i}"] = torch.tensor(ids, dtype=torch.int32)
        kept[f"logits.{i}"] = reference[-8:].contiguous()
    if expected is not None:
        save_file(kept, expected)
    return worst


def main():
    import model
    from safetensors.torch import load_file
    from tokenizers import Tokenizer
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=pathlib.Path, required=True)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    c = model.Config()
    write_folder(load_file(args.weights), c, args.tokenizer, args.out)
    if args.check:
        tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))
        text = pathlib.Path(__file__).read_text()
        ids = [make_tokenizer.EOS] + tokenizer.encode(text, add_special_tokens=False).ids
        worst = check(args.out, c, [ids[:9], ids[:700]], args.out / "expected.safetensors")
        print(f"largest logit difference to transformers, float32: {worst:.2e}")
        if not worst < 1e-3:
            raise SystemExit("the exported folder does not compute what was trained")


if __name__ == "__main__":
    main()
