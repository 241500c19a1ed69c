#!/usr/bin/env python3
"""Kiln and PyTorch on the same operations, in turn on one GPU: one table line per operation.

usage: compare.py [--bench PATH] [--rounds N] [--json FILE] [--commit TEXT] [--torch-only] [NAME,NAME...]
  --bench PATH    the kiln-bench binary (default: `kiln-bench` beside this file)
  --rounds N      rounds of each side for one operation, alternating (default 5)
  --json FILE     also write the figures, and what they were measured on, to FILE
  --commit TEXT   the commit of the binary, for the JSON file
  --torch-only    leave Kiln out (no kiln-bench needed)
  NAME            a prefix of operations; none means all

Timing, the same on both sides: device time between two events around 200 queued launches (fewer for long operations, so
that a round takes about 100 ms); a few milliseconds of copies are queued in front, so that the host is ahead. The figure
is the median of the rounds. A ratio above 1 means that Kiln is faster.

Layouts: matrices are row-major. A linear layer's weight is what each side stores: [out, in] for PyTorch, [in, out] for Burn.
Indices are 64-bit on both sides. f32 products are exact (no TF32) on both sides. The shares are of the ceilings measured
here: the faster of both sides' 2^27-element bf16 copies, and the fastest bf16 matrix product.
"""
import argparse, datetime, json, os, subprocess, sys, time

import torch
import torch.nn.functional as F

LAUNCHES, MIN_LAUNCHES, MAX_ROUND_US, WARM_UP, AHEAD = 200, 3, 100_000.0, 3, 30
HOST_OPS, HOST_CHUNK, HOST_REPETITIONS = 10_000, 500, 9
HERE = os.path.dirname(os.path.abspath(__file__))
bf16, f32 = torch.bfloat16, torch.float32
# Channels, size, output channels, kernel and stride of ResNet-50's convolutions.
CONVOLUTIONS = [
    (3, 224, 64, 7, 2), (64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1), (256, 56, 128, 1, 1), (128, 56, 128, 3, 2),
    (128, 28, 128, 3, 1), (512, 28, 256, 1, 1), (256, 14, 256, 3, 1), (1024, 14, 512, 1, 1), (512, 7, 512, 3, 1), (512, 7, 2048, 1, 1),
]


def median(values):
    return sorted(values)[len(values) // 2]


class Torch:
    """PyTorch's side. A case is a function that makes its inputs and returns the call to time."""

    def __init__(self):
        torch.manual_seed(0)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        self.ahead = self.normal(1 << 27)

    def normal(self, *shape, dtype=bf16):
        return torch.randn(*shape, device="cuda", dtype=dtype)

    def indices(self, below, *shape):
        return torch.randint(0, below, shape, device="cuda")

    def matmul(self, m, k, n, dtype):
        a, b = self.normal(m, k, dtype=dtype), self.normal(k, n, dtype=dtype)
        return lambda: a @ b

    def linear(self, m, k, n):
        x, weight = self.normal(m, k), self.normal(n, k)
        return lambda: F.linear(x, weight)

    def unary(self, op, *shape, dtype=bf16):
        x = self.normal(*(shape or (16384, 8192)), dtype=dtype)
        return lambda: op(x)

    def copy(self):
        x = self.normal(16384, 8192)
        y = torch.empty_like(x)
        return lambda: y.copy_(x)

    def add(self):
        x, y = self.normal(16384, 8192), self.normal(16384, 8192)
        return lambda: x + y

    def layer_norm(self):
        x, gamma, beta = self.normal(16384, 4096), self.normal(4096), self.normal(4096)
        return lambda: F.layer_norm(x, gamma.shape, gamma, beta)

    def layer_norm_backward(self):
        x, gamma, beta = self.normal(16384, 4096), self.normal(4096), self.normal(4096)
        _, mean, rstd = torch.ops.aten.native_layer_norm(x, [4096], gamma, beta, 1e-5)
        grad = torch.randn_like(x)
        backward = torch.ops.aten.native_layer_norm_backward
        return lambda: backward(grad, x, [4096], mean, rstd, gamma, beta, [True, True, True])

    def gather(self):
        x, index = self.normal(16384, 8192), self.indices(8192, 16384, 4096)
        return lambda: x.gather(1, index)

    def index_select(self):
        x, index = self.normal(16384, 8192), self.indices(16384, 16384)
        return lambda: x.index_select(0, index)

    def embedding(self):
        table, ids = self.normal(50257, 768), self.indices(50257, 1, 16384)
        return lambda: F.embedding(ids, table)

    def embedding_backward(self):
        grad, ids = self.normal(1, 16384, 768), self.indices(50257, 1, 16384)
        return lambda: torch.ops.aten.embedding_dense_backward(grad, ids, 50257, -1, False)

    def cat(self):
        a, b = self.normal(16384, 4096), self.normal(16384, 4096)
        return lambda: torch.cat((a, b), 1)

    def scatter_add(self, below):
        x, updates = self.normal(16384, 8192, dtype=f32), self.normal(16384, 4096, dtype=f32)
        index = self.indices(below, 16384, 4096)
        return lambda: x.scatter_add(1, index, updates)

    def max_pool_backward(self):
        x = self.normal(64, 64, 112, 112)
        y, index = F.max_pool2d(x, 3, 2, 1, return_indices=True)
        grad = torch.randn_like(y)
        backward = torch.ops.aten.max_pool2d_with_indices_backward
        return lambda: backward(grad, x, [3, 3], [2, 2], [1, 1], [1, 1], False, index)

    def convolution(self, channels, size, out, kernel, stride, wanted):
        """A pass of a convolution of 64 images, in the faster of both memory formats."""
        calls = []
        for memory_format in (torch.contiguous_format, torch.channels_last):
            x = self.normal(64, channels, size, size).to(memory_format=memory_format)
            weight = self.normal(out, channels, kernel, kernel).to(memory_format=memory_format)
            forward = lambda x=x, weight=weight: F.conv2d(x, weight, stride=stride, padding=kernel // 2)
            grad = torch.randn_like(forward())
            backward = lambda mask, x=x, weight=weight, grad=grad: torch.ops.aten.convolution_backward(
                grad, x, weight, None, [stride] * 2, [kernel // 2] * 2, [1, 1], False, [0, 0], 1, mask
            )
            calls.append(forward if wanted == "fwd" else lambda b=backward: b([wanted == "dx", wanted == "dw", False]))
        for call in calls:
            self.launches(call)
        return min(calls, key=lambda call: self.round(call, 20))

    def where(self):
        x, mask = self.normal(16384, 8192), self.normal(16384, 8192) > 0
        return lambda: torch.where(mask, x, 0.0)

    def conv3d(self):
        x, w = self.normal(4, 64, 16, 56, 56), self.normal(64, 64, 3, 3, 3)
        return lambda: F.conv3d(x, w, padding=1)

    def attention(self, is_causal):
        q, k, v = (self.normal(4, 16, 2048, 64) for _ in range(3))
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    def cases(self):
        convolutions = {
            f"conv_{channels}x{size}_{out}_k{kernel}s{stride}_{wanted}": lambda a=(channels, size, out, kernel, stride, wanted): (
                self.convolution(*a)
            )
            for channels, size, out, kernel, stride in CONVOLUTIONS
            for wanted in ("fwd", "dx", "dw")
        }
        return {
            "copy": self.copy,
            "matmul_bf16_8192": lambda: self.matmul(8192, 8192, 8192, bf16),
            "matmul_bf16_4096": lambda: self.matmul(4096, 4096, 4096, bf16),
            "matmul_bf16_1024": lambda: self.matmul(1024, 1024, 1024, bf16),
            "linear_4096x4096x14336": lambda: self.linear(4096, 4096, 14336),
            "matmul_f32_4096": lambda: self.matmul(4096, 4096, 4096, f32),
            "add_2e27": self.add,
            "gelu_2e27": lambda: self.unary(F.gelu),
            "cast_f32_2e27": lambda: self.unary(lambda x: x.float()),
            "transpose_copy": lambda: self.unary(lambda x: x.t().contiguous()),
            "transpose_64x64x3136": lambda: self.unary(lambda x: x.permute(0, 2, 1).contiguous(), 64, 64, 3136),
            "transpose_64x512x49": lambda: self.unary(lambda x: x.permute(0, 2, 1).contiguous(), 64, 512, 49),
            "permute0213_copy": lambda: self.unary(lambda x: x.permute(0, 2, 1, 3).contiguous(), 16, 2048, 32, 128),
            "cat_dim1": self.cat,
            "sum_last": lambda: self.unary(lambda x: x.sum(-1)),
            "sum_first": lambda: self.unary(lambda x: x.sum(0)),
            "max_last": lambda: self.unary(lambda x: x.amax(-1)),
            "argmax_last": lambda: self.unary(lambda x: x.argmax(-1)),
            "argmax_first": lambda: self.unary(lambda x: x.argmax(0)),
            "softmax_last": lambda: self.unary(lambda x: x.softmax(-1)),
            "log_softmax_last": lambda: self.unary(lambda x: x.log_softmax(-1)),
            "cumsum_last_f32": lambda: self.unary(lambda x: x.cumsum(-1), 16384, 8192, dtype=f32),
            "cumsum_first_f32": lambda: self.unary(lambda x: x.cumsum(0), 16384, 8192, dtype=f32),
            "sort_64x65536_f32": lambda: self.unary(lambda x: x.sort(dim=-1, stable=True), 64, 65536, dtype=f32),
            "sort_16384x1024_f32": lambda: self.unary(lambda x: x.sort(dim=-1, stable=True), 16384, 1024, dtype=f32),
            "sort_262144x64_f32": lambda: self.unary(lambda x: x.sort(dim=-1, stable=True), 262144, 64, dtype=f32),
            "topk50_64x131072_f32": lambda: self.unary(lambda x: x.topk(50, -1), 64, 131072, dtype=f32),
            "layer_norm_fwd": self.layer_norm,
            "layer_norm_bwd": self.layer_norm_backward,
            "gather_last": self.gather,
            "scatter_add_last_f32": lambda: self.scatter_add(8192),
            "scatter_add_repeated_f32": lambda: self.scatter_add(64),
            "index_select_rows": self.index_select,
            "embedding_fwd": self.embedding,
            "embedding_bwd": self.embedding_backward,
            "sort_2e24_f32": lambda: self.unary(lambda x: x.sort(), 1 << 24, dtype=f32),
            "sort_rows_f32": lambda: self.unary(lambda x: x.sort(-1), 4096, 4096, dtype=f32),
            "topk50_rows": lambda: self.unary(lambda x: x.topk(50, -1), 512, 50257),
            "topk_with_indices_rows": lambda: self.unary(lambda x: x.topk(50, -1), 512, 50257),
            "where_mask": self.where,
            "rand_2e27_f32": lambda: lambda: torch.rand(16384, 8192, device="cuda"),
            "max_pool3_s2_fwd": lambda: self.unary(lambda x: F.max_pool2d(x, 3, 2, 1), 64, 64, 112, 112),
            "max_pool3_s2_bwd": self.max_pool_backward,
            "adaptive_avg_pool1": lambda: self.unary(lambda x: F.adaptive_avg_pool2d(x, 1), 64, 2048, 7, 7),
            "conv3d_3x3x3_fwd": self.conv3d,
            "attention_fwd": lambda: self.attention(False),
            "attention_causal_fwd": lambda: self.attention(True),
            **convolutions,
        }

    def round(self, call, launches):
        """Microseconds of one call."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        for _ in range(AHEAD):
            self.ahead * 1
        start.record()
        for _ in range(launches):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / launches

    def launches(self, call):
        for _ in range(WARM_UP):
            call()
        return int(min(LAUNCHES, max(MIN_LAUNCHES, MAX_ROUND_US / max(self.round(call, MIN_LAUNCHES), 1e-3))))

    def host_cost(self):
        """As kiln-bench's: f32 additions of 1,024 elements, queued without a wait, microseconds each."""
        x, y = (torch.randn(1024, device="cuda") for _ in range(2))

        def add(count):
            start = time.perf_counter()
            for _ in range(count):
                x + y
            return time.perf_counter() - start

        add(HOST_CHUNK)
        torch.cuda.synchronize()
        whole, chunked = [], []
        for _ in range(HOST_REPETITIONS):
            whole.append(add(HOST_OPS) / HOST_OPS * 1e6)
            torch.cuda.synchronize()
            total = 0.0
            for _ in range(HOST_OPS // HOST_CHUNK):
                total += add(HOST_CHUNK)
                torch.cuda.synchronize()
            chunked.append(total / HOST_OPS * 1e6)
        return {"us": median(whole), "min": min(whole), "chunked_us": median(chunked), "chunked_min": min(chunked)}


class Kiln:
    """kiln-bench --serve: a line with a name in, a line with figures out."""

    def __init__(self, path):
        self.process = subprocess.Popen([path, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ready = self.process.stdout.readline().strip()
        if not ready.startswith("ready "):
            raise SystemExit(f"compare.py: {path} --serve did not start (its messages are above)")
        self.device = ready.removeprefix("ready ")

    def ask(self, name):
        """The figures of one round, as a dictionary of numbers."""
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"compare.py: kiln-bench ended at {name} (exit code {self.process.wait()})")
        answered, _, rest = line.partition(" ")
        if answered != name:
            raise SystemExit(f"compare.py: asked for {name}, kiln-bench answered {line!r}")
        if rest.startswith("error="):
            raise RuntimeError(rest.removeprefix("error="))
        return {key: float(value) for key, value in (item.split("=", 1) for item in rest.split())}

    def close(self):
        self.process.stdin.close()
        return self.process.wait()


def amount(figures):
    """(kind, bytes or operations) of a call, as kiln-bench states it."""
    for kind in ("bytes", "flops", "flops_f32"):
        if kind in figures:
            return kind, figures[kind]
    raise KeyError("kiln-bench stated no bound")


def measure(name, make, torch_side, kiln, rounds):
    """Both sides' rounds, alternating."""
    result = {"op": name, "torch_rounds_us": [], "kiln_rounds_us": []}
    call = make()
    launches = torch_side.launches(call)
    if kiln:
        kiln.ask(name)  # makes the inputs and warms up
    for _ in range(rounds):
        result["torch_rounds_us"].append(torch_side.round(call, launches))
        if kiln:
            figures = kiln.ask(name)
            result["kiln_rounds_us"].append(figures["us"])
    result["torch_us"], result["torch_launches"] = median(result["torch_rounds_us"]), launches
    if kiln:
        result["kiln_us"], result["kiln_launches"] = median(result["kiln_rounds_us"]), figures["launches"]
        result["ratio"] = result["torch_us"] / result["kiln_us"]
        result["kind"], result["amount"] = amount(figures)
    return result


def print_table(results):
    """Shares need the ceilings, so the table is printed at the end; progress goes to stderr."""
    best = {}
    for r in results:
        if r.get("kind") == "bytes" and r["op"] == "copy" or r.get("kind") == "flops":
            rate = r["amount"] / min(r["torch_us"], r["kiln_us"]) * 1e6
            best[r["kind"]] = max(best.get(r["kind"], 0.0), rate)
    print(f"{'operation':<24} {'torch us':>10} {'kiln us':>10} {'ratio':>6} {'kiln rate':>15}  share of ceiling")
    for r in results:
        if "error" in r:
            print(f"{r['op']:<24} {r['error']}")
            continue
        line = f"{r['op']:<24} {r['torch_us']:>10.2f}"
        if "kiln_us" in r:
            rate = r["amount"] / r["kiln_us"] * 1e6
            shown = f"{rate / 1e9:.0f} GB/s" if r["kind"] == "bytes" else f"{rate / 1e12:.1f} TFLOP/s"
            ceiling = best.get(r["kind"])
            r["kiln_share"] = rate / ceiling if ceiling else None
            r["torch_share"] = r["amount"] / r["torch_us"] * 1e6 / ceiling if ceiling else None
            share = f"{r['kiln_share']:.3f} (torch {r['torch_share']:.3f})" if ceiling else "-"
            line += f" {r['kiln_us']:>10.2f} {r['ratio']:>6.3f} {shown:>15}  {share}"
        print(line)
    return best


def print_host_cost(host):
    print(f"\nhost cost of one eager f32 add of 1,024 elements, us     10,000 in a row     chunks of {HOST_CHUNK}")
    for side, h in host.items():
        print(f"  {side:<6} median (minimum) {h['us']:>37.2f} ({h['min']:.2f}) {h['chunked_us']:>11.2f} ({h['chunked_min']:.2f})")


def driver_version():
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0].strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="?", default="", metavar="NAME,NAME...")
    parser.add_argument("--bench", default=os.path.join(HERE, "kiln-bench"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--commit", default="not stated")
    parser.add_argument("--torch-only", action="store_true")
    return parser.parse_args(argv)


def main(argv):
    args = parse(argv)
    if not torch.cuda.is_available():
        raise SystemExit("compare.py: PyTorch sees no CUDA device")
    if args.rounds < 1:
        raise SystemExit("compare.py: --rounds must be at least 1")
    torch_side = Torch()
    kiln = None if args.torch_only else Kiln(args.bench)
    cases = torch_side.cases()
    prefixes = [name for name in args.names.split(",") if name]
    wanted = lambda name: not prefixes or any(name.startswith(prefix) for prefix in prefixes)
    unknown = [p for p in prefixes if not any(name.startswith(p) for name in [*cases, "host_cost"])]
    if unknown:
        raise SystemExit(f"compare.py: no operation begins with {', '.join(unknown)}")
    about = {
        "device": torch.cuda.get_device_name(0),
        "driver": driver_version(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "kiln_device": kiln.device if kiln else None,
        "commit": args.commit,
        "command": f"compare.py --rounds {args.rounds} {args.names}".rstrip(),
        "time_utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    for key, value in about.items():
        print(f"{key + ':':<12} {value}")
    print()
    results, host = [], {}
    with torch.no_grad():
        for name, make in cases.items():
            if not wanted(name):
                continue
            print(f"measuring {name}", file=sys.stderr, flush=True)
            try:
                results.append(measure(name, make, torch_side, kiln, args.rounds))
            except RuntimeError as error:
                results.append({"op": name, "error": str(error)[:300]})
            torch.cuda.empty_cache()
            if kiln:
                kiln.ask("drop")
        if wanted("host_cost"):
            host["torch"] = torch_side.host_cost()
            if kiln:
                try:
                    host["kiln"] = kiln.ask("host_cost")
                except RuntimeError as error:
                    results.append({"op": "host_cost", "error": str(error)[:300]})
    best = print_table(results)
    if host:
        print_host_cost(host)
    if args.json:
        ceilings = {"copy_bytes_per_s": best.get("bytes"), "matmul_bf16_flops_per_s": best.get("flops")}
        with open(args.json, "w") as file:
            json.dump({"about": about, "ceilings": ceilings, "operations": results, "host_cost_us": host}, file, indent=1)
            file.write("\n")
    if kiln and kiln.close() != 0:
        raise SystemExit("compare.py: kiln-bench failed at its end")
    return 1 if any("error" in r for r in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
