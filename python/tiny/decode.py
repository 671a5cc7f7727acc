"""Greedy decoding in plain PyTorch for evaluation: batched, with a K/V cache, any dtype."""
import torch
import torch.nn.functional as F

import model


class Decoder:
    def __init__(self, config, w, dtype=torch.bfloat16):
        self.config, self.w, self.dtype = config, w, dtype
        self.device = w["embed"].device
        self.layers = [model.layer_weights(w, i) for i in range(len(config.heads))]
        self.tables = model.rope_tables(config, self.device)

    def _turn(self, kind, position):
        cos, sin = self.tables[kind]
        return cos[position], sin[position]

    def _logits(self, h):
        x = model.rms(h, self.w["norm"], self.config.eps).to(self.dtype)
        return F.linear(x, self.w["head"].to(self.dtype)).float()

    def _layers(self, h, position, attend):
        c = self.config
        for i, p in enumerate(self.layers):
            kind = "full" if c.full(i) else "window"
            x = model.rms(h, p["input_norm"], c.eps).to(self.dtype)
            q, k, v = model.project(x, p, *self._turn(kind, position), c.head_dim, c.eps)
            h = model.gated_output(h, x, attend(i, kind, q, k, v), p)
            h, _ = model.ffn(h, p, c.eps, c.top_k, c.routed_scale, self.dtype)
        return h

    @torch.no_grad()
    def forward(self, tokens, cache=None):
        """Hidden states [B, n, hidden] of whole sequences; fills cache[layer] = (k, v) when given."""
        n = tokens.shape[1]
        position = torch.arange(n, device=self.device)[None].expand(tokens.shape[0], -1)
        gap = position[0][:, None] - position[0][None, :]
        seen = {"full": gap >= 0, "window": (gap >= 0) & (gap < self.config.window)}

        def attend(i, kind, q, k, v):
            if cache is not None:
                cache[i][0][:, :, :n], cache[i][1][:, :, :n] = k, v
            groups = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            if kind == "full" or n <= self.config.window:
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=seen[kind])

        return self._layers(F.embedding(tokens, self.w["embed"]).float(), position, attend)

    @torch.no_grad()
    def logits(self, tokens):
        return self._logits(self.forward(tokens))

    @torch.no_grad()
    def greedy(self, prompts, new_tokens, stops=(2, 24)):
        """Lists of ids -> lists of new ids, each up to and including its first stop id."""
        c, count = self.config, len(prompts)
        lengths = torch.tensor([len(p) for p in prompts], device=self.device)
        longest = int(lengths.max())
        room = longest + new_tokens
        tokens = torch.zeros(count, longest, dtype=torch.long)
        for i, p in enumerate(prompts):
            tokens[i, :len(p)] = torch.tensor(p)
        cache = [tuple(torch.zeros(count, c.kv_heads, room, c.head_dim, dtype=self.dtype, device=self.device)
                       for _ in range(2)) for _ in c.heads]
        h = self.forward(tokens.to(self.device), cache)
        row = torch.arange(count, device=self.device)
        current = self._logits(h[row, lengths - 1]).argmax(-1)
        out, done = [current], torch.zeros(count, dtype=torch.bool, device=self.device)
        stop = torch.tensor(stops, device=self.device)
        key = torch.arange(room, device=self.device)[None]
        for step in range(new_tokens - 1):
            done |= torch.isin(current, stop)
            if step % 8 == 0 and bool(done.all()):
                break
            at = lengths + step
            gap = at[:, None] - key
            seen = {"full": gap >= 0, "window": (gap >= 0) & (gap < c.window)}

            def attend(i, kind, q, k, v):
                cache[i][0][row, :, at], cache[i][1][row, :, at] = k[:, :, 0], v[:, :, 0]
                groups = q.shape[1] // k.shape[1]
                keys, vals = (t.repeat_interleave(groups, 1) for t in cache[i])
                return F.scaled_dot_product_attention(q, keys, vals, attn_mask=seen[kind][:, None, None])

            h = self._layers(F.embedding(current[:, None], self.w["embed"]).float(), at[:, None], attend)
            current = self._logits(h[:, 0]).argmax(-1)
            out.append(current)
        columns = torch.stack(out, 1).tolist()
        results = []
        for ids in columns:
            end = next((i for i, t in enumerate(ids) if t in stops), len(ids) - 1)
            results.append(ids[:end + 1])
        return results
