#!/usr/bin/env python3
"""The workload of bench_generate.c with llama.cpp (llama-cpp-python and gguf), from the folder that it wrote (--weights);
--int8: the products' weights as Q8_0."""
import ctypes
import json
import sys
import time
import types
from pathlib import Path

import common
import gguf
import llama_cpp as ll
import numpy as np

LLAMA = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
GPT2 = {"transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm",
        "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
        "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}


def renamed(name, names):
    """A tensor's name in GGUF: transformer.h.3.ln_1.bias is blk.3.attn_norm.bias."""
    module, _, kind = name.rpartition(".")
    parts = module.split(".")
    if len(parts) > 3:
        return f"blk.{parts[2]}.{names['.'.join(parts[3:])]}.{kind}"
    return f"{names[module]}.{kind}"


def convert(folder, path, kind):
    """The model of the folder as a GGUF file, products' weights as `kind`, without a tokenizer."""
    c = json.loads((folder / "config.json").read_text())
    gpt2 = c["model_type"] == "gpt2"
    heads = c["n_head"] if gpt2 else c["num_attention_heads"]
    keys = heads if gpt2 else c["num_key_value_heads"]
    width = c["n_embd"] if gpt2 else c["hidden_size"]
    w = gguf.GGUFWriter(path, "gpt2" if gpt2 else "llama")
    w.add_block_count(c["n_layer"] if gpt2 else c["num_hidden_layers"])
    w.add_context_length(c["n_positions"] if gpt2 else c["max_position_embeddings"])
    w.add_embedding_length(width)
    w.add_feed_forward_length(4 * width if gpt2 else c["intermediate_size"])
    w.add_head_count(heads)
    w.add_head_count_kv(keys)
    w.add_vocab_size(c["vocab_size"])
    w.add_tokenizer_model("none")
    if gpt2:
        w.add_layer_norm_eps(1e-5)
    else:
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
        w.add_rope_freq_base(c.get("rope_theta", 10000.0))
        w.add_rope_dimension_count(width // heads)
    for name, x in common.tensors(next(folder.glob("*.safetensors"))):
        if name == "lm_head.weight":
            continue  # tied
        if gpt2 and x.ndim == 2 and ".h." in name:
            x = x.T  # Conv1D
        for part, n in ("q_proj", heads), ("k_proj", keys):
            if part in name:  # llama.cpp turns neighbours, Hugging Face the halves of a head
                x = x.reshape(n, 2, -1, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        to = renamed(name, GPT2 if gpt2 else LLAMA)
        x = np.ascontiguousarray(x, np.float32)
        if x.ndim < 2 or kind == gguf.GGMLQuantizationType.F32 or to == "position_embd.weight":
            w.add_tensor(to, x)
        else:
            w.add_tensor(to, gguf.quants.quantize(x, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


args = common.parse(steps=64, warmup=1, config="smollm2")
PROMPT, rows, context = 16, args.batch or 1, args.context or 512
name = f"llama_{args.config}"
kinds = gguf.GGMLQuantizationType
path = str(Path(args.weights) / "model.gguf")
convert(Path(args.weights), path, kinds.Q8_0 if args.int8 else kinds.BF16 if args.precision == "bf16" else kinds.F32)
quiet = ll.llama_log_callback(lambda *_: None)
ll.llama_log_set(quiet, ctypes.c_void_p(0))
ll.llama_backend_init()
of_model = ll.llama_model_default_params()
of_model.use_mmap = False
args.start = common.memory_at_start()
model = ll.llama_model_load_from_file(path.encode(), of_model)
if not model:
    sys.exit(f"{path}: llama.cpp does not read it")
vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))
numbers = types.SimpleNamespace(from_numpy=lambda x: x)
text = common.tokens(numbers, 0, 1, context, vocab)[:, :context]
starts = common.tokens(numbers, 1, rows, PROMPT, vocab)[:, :PROMPT]
print(f"# {name}: llama.cpp of llama-cpp-python {ll.__version__}, {args.threads or 'its'} threads, "
      f"{ll.llama_print_system_info().decode()}", file=sys.stderr, flush=True)


def new_context(n, sequences):
    p = ll.llama_context_default_params()
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = n * sequences, 512, 512, sequences
    if args.threads:
        p.n_threads = p.n_threads_batch = args.threads
    return ll.llama_init_from_model(model, p)


def step(ctx, batch, ids, start):
    """Logits [rows, vocab] behind ids [rows, n], which stand from position `start` on."""
    n = ids.shape[1]
    batch.n_tokens = ids.size
    for r in range(len(ids)):
        for t in range(n):
            i = r * n + t
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = int(ids[r, t]), start + t, 1
            batch.seq_id[i][0], batch.logits[i] = r, t == n - 1
    if ll.llama_decode(ctx, batch):
        sys.exit("llama_decode failed")
    return [np.ctypeslib.as_array(ll.llama_get_logits_ith(ctx, r * n + n - 1), (vocab,)) for r in range(len(ids))]


def read_prompt():
    ctx, batch = new_context(context, 1), ll.llama_batch_init(context, 0, 1)
    t0 = time.perf_counter()
    step(ctx, batch, text, 0)
    took = time.perf_counter() - t0
    ll.llama_batch_free(batch), ll.llama_free(ctx)
    return took


def write_tokens():
    ctx, batch = new_context(PROMPT + args.steps, rows), ll.llama_batch_init(PROMPT * rows, 0, 1)
    t0, ids, total = time.perf_counter(), starts, 0
    for t in range(args.steps):
        logits = step(ctx, batch, ids, 0 if t == 0 else PROMPT + t - 1)
        ids = np.array([[row.argmax()] for row in logits])
        total += int(ids.sum()) * (t % 7 + 1)
    took = time.perf_counter() - t0
    ll.llama_batch_free(batch), ll.llama_free(ctx)
    return took, total


for _ in range(args.warmup):
    read_prompt(), write_tokens()
for _ in common.rounds(args):
    common.line(name, "ms_prefill", [1e3 * read_prompt()])
    took, checksum = write_tokens()
    common.line(name, "tokens/s", [rows * args.steps / took])
    common.line(name, "checksum", [checksum])
    common.memory(args, name)
