#!/usr/bin/env python3
"""`pliant reshard`: checkpoints on disk for other layouts, there and back, bit for bit.

Checkpoints are made with the standard library alone. Runs are killed at random instants and
continued; memory is measured; disks are full and arguments are wrong.
"""

import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

from convert_test import (DATA, HAS_TORCH, Tensor, Torch, pattern, read_safetensors,
                          write_safetensors)
from launched import LIMIT_S, PROGRAM, SANITIZED, Commands, environment, start

TORCH_SCRIPT = """
import json, sys, torch
import torch.distributed.checkpoint as dcp
folder = sys.argv[1]
kinds = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64, "F64": torch.float64}
state = {name: torch.zeros(shape, dtype=kinds[dtype])
         for name, (dtype, shape) in json.load(open(folder + "/kinds.json")).items()}
dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(folder + "/out"))
torch.save(state, folder + "/saved.pt")
"""
SIZES = {"F32": 4, "BF16": 2, "F64": 8, "I64": 8, "U64": 8, "U8": 1}


def gpt_tiny():
    """name -> shape, of the model of that name."""
    shapes = {"embedding.word_embeddings.weight": [100, 32],
              "embedding.position_embeddings.weight": [8, 32]}
    for layer in range(4):
        for name, shape in {
                "input_layernorm.weight": [32], "input_layernorm.bias": [32],
                "self_attention.linear_qkv.weight": [96, 32],
                "self_attention.linear_qkv.bias": [96],
                "self_attention.linear_proj.weight": [32, 32],
                "self_attention.linear_proj.bias": [32], "pre_mlp_layernorm.weight": [32],
                "pre_mlp_layernorm.bias": [32], "mlp.linear_fc1.weight": [128, 32],
                "mlp.linear_fc1.bias": [128], "mlp.linear_fc2.weight": [32, 128],
                "mlp.linear_fc2.bias": [32]}.items():
            shapes[f"decoder.layers.{layer}.{name}"] = shape
    shapes["decoder.final_layernorm.weight"] = shapes["decoder.final_layernorm.bias"] = [32]
    return shapes


def llama_tiny(experts=0):
    """Eight heads of queries and two of keys and values, fused; so are gate and up."""
    shapes = {"model.embed_tokens.weight": [100, 32]}
    for layer in range(4):
        start_ = f"model.layers.{layer}."
        shapes[start_ + "input_layernorm.weight"] = [32]
        shapes[start_ + "self_attn.qkv_proj.weight"] = [48, 32]
        shapes[start_ + "self_attn.o_proj.weight"] = [32, 32]
        shapes[start_ + "post_attention_layernorm.weight"] = [32]
        inner = 16 if experts else 48
        if experts:
            shapes[start_ + "mlp.gate.weight"] = [experts, 32]
        for mlp in [f"mlp.experts.{e}." for e in range(experts)] or ["mlp."]:
            shapes[start_ + mlp + "gate_up_proj.weight"] = [2 * inner, 32]
            shapes[start_ + mlp + "down_proj.weight"] = [32, inner]
    shapes["model.norm.weight"], shapes["lm_head.weight"] = [32], [100, 32]
    return shapes


def product(shape):
    total = 1
    for extent in shape:
        total *= extent
    return total


def state_of(shapes, dtype="BF16"):
    """A training state with AdamW: name -> (dtype, shape, bytes)."""
    kinds = {name: (dtype, shape) for name, shape in shapes.items()}
    for part in ["exp_avg", "exp_avg_sq"] + (["master"] if dtype != "F32" else []):
        kinds.update({f"optimizer.{part}.{name}": ("F32", shape)
                      for name, shape in shapes.items()})
    kinds.update(step=("I64", []), learning_rate=("F64", []))
    kinds["random.seed"] = ("U64", [])
    chance = random.Random(1)
    return {name: (dtype, shape, chance.randbytes(SIZES[dtype] * product(shape)))
            for name, (dtype, shape) in kinds.items()}


def peak_memory(pid):
    """The most that a process ever had; 0 if it is gone."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) << 10 if found else 0


def layout(axes, rules, tensors=None, **more):
    document = {"format": "pliant.layout/1", "rules": rules, **more,
                "mesh": {"axes": [{"name": name, "size": size} for name, size in axes.items()]}}
    if tensors:
        document["tensors"] = [{"name": name, "dtype": dtype.lower(), "shape": shape}
                               for name, (dtype, shape, _) in tensors.items()]
    return document


def rows(*axes, **more):
    return {"match": "*", "shard": [{"dim": 0, "axes": list(axes), **more}]}


class Reshard(Commands):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.source = self.folder / "source.safetensors"

    def reshard(self, source, destination, *arguments):
        return json.loads(self.good("reshard", source, destination, "--json", *arguments))

    def tensors_of(self, path):
        """All tensors of a checkpoint, as another program would put them together."""
        one = self.folder / "one.safetensors"
        self.good("convert", path, one, "--force")
        tensors = read_safetensors(one)[0]
        one.unlink()
        return tensors

    def put_layout(self, name, document):
        path = self.folder / name
        path.write_text(json.dumps(document))
        return path

    def test_presets_there_and_back(self):
        ways = {"gpt-tiny": ["tp=4,pp=2", "dp=2,pp=3", "tp=8", "dp=3,tp=2,zero=1", "dp=4,zero=3",
                             "pp=2,interleave=2"],
                "llama-tiny": ["tp=2,pp=4", "tp=8", "dp=2,tp=4,zero=1", "pp=3", "dp=5,zero=3"],
                "moe-tiny": ["dp=4,ep=4", "dp=4,ep=2,tp=2,zero=1", "dp=2,pp=2"]}
        shapes = {"gpt-tiny": gpt_tiny(), "llama-tiny": llama_tiny(), "moe-tiny": llama_tiny(8)}
        for model, sizes in ways.items():
            state = state_of(shapes[model], "F32" if model == "llama-tiny" else "BF16")
            write_safetensors(self.source, state, {"format": "pt", "origin": "a test"})
            before = self.source
            for number, to in enumerate(sizes):
                with self.subTest(model=model, to=to):
                    after = self.folder / f"{model}-{number}"
                    report = self.reshard(before, after, "--model", model, "--to", to, "--verify",
                                          "--memory", "8M")
                    self.assertEqual(report["bytes"], sum(len(t[2]) for t in state.values()))
                    self.assertEqual(report["bytes_moved"], report["bytes"])
                    self.assertEqual(report["tensors"], len(state))
                    self.assertEqual(self.tensors_of(after), state)
                    values = json.loads((after / "pliant_values.json").read_text())
                    self.assertEqual(values["__metadata__.origin"], "a test")
                    before = after
            self.source.unlink()

    def test_each_rank_has_what_it_holds(self):
        state = state_of(llama_tiny())
        write_safetensors(self.source, state)
        out = self.folder / "out"
        self.reshard(self.source, out, "--model", "llama-tiny", "--to", "tp=2,pp=2,dp=2")
        # Ranks 2 and 3 of each stage are replicas, and have no files.
        ranks = {int(p.name[6:11]) - 1 for p in out.glob("*.safetensors")}
        self.assertEqual(ranks, {0, 1, 4, 5})
        name = "model.layers.3.self_attn.qkv_proj.weight"
        found = []
        for path in sorted(out.glob("shard-00006-*.safetensors")):
            tensors, metadata = read_safetensors(path)
            self.assertEqual(metadata["format"], "pt")
            sharding = json.loads(metadata["DCP_SHARDING_INFO"])
            self.assertEqual(set(sharding), set(tensors))
            if name in tensors:
                found.append((sharding[name]["saved_offsets"], tensors[name][1:]))
        elements = state[name][2]
        # The second half of the queries, of the keys and of the values.
        self.assertEqual(found, [([a, 0], ([b - a, 32], elements[64 * a:64 * b]))
                                 for a, b in [(16, 32), (36, 40), (44, 48)]])
        plan = json.loads(self.good("plan", out / "layout.json", out / "layout.json", "--json"))
        self.assertEqual(plan["bytes_moved"], 0)

    def test_arrays_of_each_rank(self):
        state = state_of(llama_tiny())
        write_safetensors(self.source, state)
        out = self.folder / "out"
        report = self.reshard(self.source, out, "--model", "llama-tiny", "--to",
                              "tp=8,dp=2,zero=1", "--rank-files", "--verify")
        self.assertEqual(report["files"], 16)
        self.assertEqual(len(list(out.glob("rank-*.safetensors"))), 16)
        tensors, metadata = read_safetensors(out / "rank-00013.safetensors")  # tp 5
        self.assertEqual(metadata["pliant_rank"], "13")
        qkv = "model.layers.1.self_attn.qkv_proj.weight"
        elements = state[qkv][2]
        # One head of queries; the second head of keys and of values, which four ranks share.
        self.assertEqual(tensors[qkv], ("BF16", [12, 32], b"".join(
            elements[64 * a:64 * (a + 4)] for a in [20, 36, 44])))
        # 100 words are padded to 104.
        words = state["model.embed_tokens.weight"][2]
        self.assertEqual(tensors["model.embed_tokens.weight"],
                         ("BF16", [13, 32], words[64 * 65:64 * 78]))
        last = read_safetensors(out / "rank-00007.safetensors")[0]["model.embed_tokens.weight"]
        self.assertEqual(last, ("BF16", [13, 32], words[64 * 91:] + bytes(64 * 4)))
        self.assertEqual(len(tensors["exp_avg"][1]), 1)  # a flat range

    def test_a_layout_of_ones_own(self):
        tensors = {"a": ("F32", [10, 6], pattern(240)), "b": ("BF16", [10], pattern(20, 1)),
                   "c": ("U8", [13, 2], pattern(26, 2))}
        write_safetensors(self.source, tensors)
        columns = {"match": "a", "shard": [{"dim": 1, "axes": ["tp"]}]}
        layouts = [
            layout({"tp": 3}, [rows("tp", split="balanced")]),
            layout({"tp": 2}, [columns, {"otherwise": True, "replicated": True}]),
            layout({"dp": 3}, [{"match": name, "flat": {"group": name, "axes": ["dp"]}}
                               for name in tensors], tensors),
            layout({"tp": 4}, [rows("tp", split="ceil")]),
            layout({"tp": 2}, [{"match": "a", "shard": [{"dim": 0, "axes": ["tp"], "padded": 12}]},
                               {"otherwise": True, "replicated": True}])]
        before = self.source
        for number, document in enumerate(layouts):
            after = self.folder / f"out{number}"
            path = self.put_layout(f"{number}.json", document)
            self.reshard(before, after, "--layout", path, "--verify", "--max-shard", "100")
            self.assertEqual(self.tensors_of(after), tensors)
            before = after

    def test_a_resharded_checkpoint_knows_its_layout(self):
        state = state_of(gpt_tiny())
        write_safetensors(self.source, state)
        self.reshard(self.source, self.folder / "a", "--model", "gpt-tiny", "--to", "tp=2,pp=3")
        self.reshard(self.folder / "a", self.folder / "b", "--to", "tp=1,pp=4,dp=2")
        self.assertEqual(self.tensors_of(self.folder / "b"), state)
        document = json.loads((self.folder / "b" / "layout.json").read_text())
        sizes = {axis["name"]: axis["size"] for axis in document["mesh"]["axes"]}
        self.assertEqual((sizes["tp"], sizes["pp"], sizes["dp"]), (1, 4, 2))
        again = ["reshard", self.folder / "a", self.folder / "c", "--to"]
        self.assertRegex(self.bad(*again, "zero=1", code=2), "no axis 'zero'.*--model")
        # The vocabulary is padded for two and for one, not for three.
        self.assertRegex(self.bad(*again, "tp=3", code=2), "layout.json: .*--layout")

    def test_every_format_is_read(self):
        torch = Torch()
        floats = struct.pack("<24f", *range(24))
        path = self.folder / "x.pt"
        path.write_bytes(torch.save({"w": Tensor(floats, 0, (6, 4), (4, 1)),
                                     "t": Tensor(floats, 0, (4, 6), (1, 4)), "step": 7}))
        two = self.put_layout("two.json", layout({"tp": 2}, [rows("tp")]))
        self.reshard(path, self.folder / "out", "--layout", two, "--verify")
        tensors = self.tensors_of(self.folder / "out")
        self.assertEqual(tensors["w"], ("F32", [6, 4], floats))
        self.assertEqual(tensors["t"][2],
                         struct.pack("<24f", *(4 * c + r for r in range(4) for c in range(6))))
        self.assertEqual(json.loads((self.folder / "out" / "pliant_values.json").read_text()),
                         {"step": 7})
        with tarfile.open(DATA / "torch_2_11.tar.gz") as files:
            files.extractall(self.folder)
        all_ = self.put_layout("all.json", layout({"dp": 2}, [{"match": "*", "replicated": True}]))
        truth = self.tensors_of(self.folder / "torch_2_11" / "all.safetensors")
        for name, prefix in [("dcp", "model."), ("hf", ""), ("a.pt", "model.")]:
            out = self.folder / f"from-{name}"
            self.reshard(self.folder / "torch_2_11" / name, out, "--layout", all_, "--verify")
            found = self.tensors_of(out)
            for tensor in ["w", "c", "b", "h", "i"]:
                self.assertEqual(found[prefix + tensor], truth[tensor])

    @unittest.skipUnless(HAS_TORCH, "no torch with checkpoints of safetensors")
    def test_torch_loads_it(self):
        state = state_of(llama_tiny())
        del state["random.seed"]  # of a type that torch's reader does not know
        write_safetensors(self.source, state)
        (self.folder / "kinds.json").write_text(json.dumps({k: v[:2] for k, v in state.items()}))
        for to in ["tp=4,pp=2", "dp=3,tp=2,zero=1", "dp=2,zero=3"]:
            self.reshard(self.source, self.folder / "out", "--model", "llama-tiny", "--to", to,
                         "--allow-missing", "--force")
            done = subprocess.run([sys.executable, "-c", TORCH_SCRIPT, self.folder],
                                  capture_output=True, text=True, timeout=LIMIT_S)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.tensors_of(self.folder / "saved.pt"), state)

    def test_killed_at_random_instants(self):
        seed = int(os.environ.get("PLIANT_TEST_SEED", random.randrange(1 << 30)))
        chance = random.Random(seed)
        tensors = {f"w{i}": ("F32", [64, 4096], chance.randbytes(1 << 20)) for i in range(16)}
        write_safetensors(self.source, tensors)
        path = self.put_layout("l.json", layout({"tp": 8}, [rows("tp")]))
        arguments = [str(self.source), str(self.folder / "out"), "--layout", str(path),
                     "--max-shard", "512K"]
        began = time.monotonic()
        self.good("reshard", *arguments)
        usual = time.monotonic() - began
        expected = {p.name: p.read_bytes() for p in (self.folder / "out").iterdir()}
        kept = 0
        for round_ in range(8):
            shutil.rmtree(self.folder / "out")
            for _ in range(chance.randint(1, 3)):
                process = start("reshard", *arguments)
                time.sleep(chance.random() * usual / 2)
                process.send_signal(signal.SIGKILL)
                process.communicate()
            if not (self.folder / "out").exists():
                kept += self.reshard(*arguments)["files_kept"]
            found = {p.name: p.read_bytes() for p in (self.folder / "out").iterdir()
                     if p.name != "reshard.journal"}
            self.assertEqual(found, expected, f"seed {seed}, round {round_}")
            self.assertFalse((self.folder / "out.partial").exists(), f"seed {seed}")
        print(f"seed {seed}: {kept} files of interrupted runs were kept")

    @unittest.skipIf(SANITIZED, "memory of a sanitized program says nothing")
    def test_memory_is_bounded(self):
        # Columns: each of the 64 ranks has a little of every page of the source.
        def peak(rows_):
            big = self.folder / f"{rows_}.safetensors"
            header = json.dumps({"w": {"dtype": "F32", "shape": [rows_, 1024],
                                       "data_offsets": [0, rows_ * 4096]}}).encode()
            with open(big, "wb") as file:
                file.write(struct.pack("<Q", len(header)) + header)
                file.truncate(8 + len(header) + rows_ * 4096)
                for row in range(0, rows_, 997):
                    file.seek(8 + len(header) + row * 4096 + row % 4000)
                    file.write(b"x")
            process = start("reshard", str(big), str(self.folder / f"out{rows_}"), "--layout",
                            str(path), "--memory", "16M", "--verify")
            highest = 0
            while process.poll() is None:
                highest = max(highest, peak_memory(process.pid))
                time.sleep(0.002)
            self.assertEqual(process.returncode, 0, process.communicate()[1])
            process.communicate()
            return highest

        path = self.put_layout("columns.json", layout(
            {"tp": 64}, [{"match": "*", "shard": [{"dim": 1, "axes": ["tp"]}]}]))
        base = peak(64)
        self.assertGreater(base, 0)
        self.assertLess(peak(32768) - base, 24 << 20, "of 128 MiB with --memory 16M")

    def test_a_full_disk_loses_nothing(self):
        tensors = {f"w{i}": ("U8", [8, 1000 * (i + 1)], pattern(8000 * (i + 1), i))
                   for i in range(6)}
        write_safetensors(self.source, tensors)
        path = self.put_layout("l.json", layout({"tp": 1}, [rows("tp")]))
        arguments = ["reshard", str(self.source), str(self.folder / "out"), "--layout", str(path),
                     "--max-shard", "1"]

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (30000, 30000))

        done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True,
                              timeout=LIMIT_S, env=environment(), preexec_fn=limit,
                              restore_signals=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"out\.partial/shard-\S+: .*3 of 6 files are complete.*"
                                      r"the same command continues.*needs")
        self.assertFalse((self.folder / "out").exists())
        report = json.loads(self.good(*arguments, "--json"))
        self.assertEqual((report["files"], report["files_kept"]), (6, 3))
        self.assertEqual(report["bytes_moved"], 8000 * (4 + 5 + 6))
        self.assertEqual(self.tensors_of(self.folder / "out"), tensors)

    def test_destinations_that_exist(self):
        tensors = {"w": ("F32", [8, 2], pattern(64))}
        write_safetensors(self.source, tensors)
        path = self.put_layout("l.json", layout({"tp": 2}, [rows("tp")]))
        out = self.folder / "out"
        out.mkdir()
        (out / "mine").write_text("x")
        arguments = ["reshard", self.source, out, "--layout", path]
        self.assertIn("--force", self.bad(*arguments))
        self.assertEqual((out / "mine").read_text(), "x")
        self.good(*arguments, "--force")
        self.assertEqual(self.tensors_of(out), tensors)
        self.assertFalse((out / "mine").exists())
        # The source would be deleted with its folder.
        self.assertIn("lie in each other",
                      self.bad("reshard", self.source, self.folder, "--layout", path, "--force"))
        self.assertIn("lie in each other", self.bad("reshard", out, out / "in", "--layout", path))

    def test_bad_input_is_named(self):
        state = state_of(gpt_tiny())
        write_safetensors(self.source, state)
        out = self.folder / "out"
        model = ["--model", "gpt-tiny", "--to", "tp=2"]

        def refused(*arguments, source=self.source, code=2):
            return self.bad("reshard", source, out, *arguments, code=code)

        self.assertIn("say for which layout", refused())
        self.assertRegex(refused("--to", "tp=2"), "no layout.json.*--model")
        self.assertIn("gpt-tiny", refused("--model", "gpt-huge", "--to", "tp=2"))
        self.assertIn("--to", refused("--model", "gpt-tiny"))
        self.assertIn("'tp=x'", refused("--model", "gpt-tiny", "--to", "tp=x"))
        self.assertIn("decoder.layers", refused("--model", "gpt-tiny", "--to", "tp=5"))
        self.assertIn("give one of them", refused(*model, "--layout", "x.json"))
        self.assertIn("absent.json", refused("--layout", self.folder / "absent.json"))
        self.assertIn("too few", refused(*model, "--memory", "1M", code=1))
        self.assertIn("--memory", refused(*model, "--memory", "much"))
        self.assertIn("does not exist", refused(*model, source="/absent", code=1))
        broken = self.put_layout("broken.json", layout({"tp": 2}, [rows("xx")]))
        self.assertRegex(refused("--layout", broken), r"broken\.json: .*xx")
        uncovered = self.put_layout("u.json", layout({"tp": 2}, [{"match": "step",
                                                                  "replicated": True}]))
        self.assertIn("embedding.word_embeddings.weight", refused("--layout", uncovered))
        other = self.put_layout("o.json", layout({"tp": 2}, [rows("tp")],
                                                 {"w": ("F32", [4], b"")}))
        self.assertRegex(refused("--layout", other), r"o\.json does not fit .*'")
        # Other names, other shapes, tensors that are missing.
        for change, expected in [
                ({"model.foreign": ("F32", [2], bytes(8))}, "'model.foreign' is none of"),
                ({"step": ("I64", [1], bytes(8))}, r"'step' is of shape \[1\]")]:
            write_safetensors(self.source, {**state, **change})
            self.assertRegex(refused(*model), expected)
        del state["decoder.layers.2.mlp.linear_fc1.bias"]
        write_safetensors(self.source, state)
        self.assertRegex(refused(*model), "'decoder.layers.2.mlp.linear_fc1.bias' of .*not there.*"
                                          "--allow-missing")
        self.good("reshard", self.source, out, *model, "--allow-missing")
        self.assertEqual(self.tensors_of(out), state)
        # A file of the source is cut.
        self.assertEqual(sorted(p.name for p in self.folder.iterdir() if p.is_dir()), ["out"])
        last = sorted(out.glob("*.safetensors"))[-1]
        last.write_bytes(last.read_bytes()[:-1])
        self.assertIn(last.name, self.bad("reshard", out, self.folder / "x", "--to", "tp=1"))
        # Torch's format says nowhere how large a tensor is; the layout beside it does.
        last.unlink()
        self.assertRegex(self.bad("reshard", out, self.folder / "x", "--to", "tp=1", code=2),
                         "does not fit .*; is a file of the checkpoint missing?")
        first = sorted(out.glob("*.safetensors"))[0]
        first.unlink()
        self.assertRegex(self.bad("reshard", out, self.folder / "x", "--to", "tp=1"),
                         "no safetensors files")

    def test_interrupted_runs_of_other_arguments(self):
        write_safetensors(self.source, {"w": ("F32", [8, 2], pattern(64))})
        path = self.put_layout("l.json", layout({"tp": 2}, [rows("tp")]))
        out, partial = self.folder / "out", self.folder / "out.partial"
        arguments = ["reshard", self.source, out, "--layout", path]
        partial.mkdir()
        (partial / "reshard.journal").write_text(
            '{"format":"pliant.reshard/1","source":"/else","source_state":"1","layout":"2",'
            '"max_shard":3,"kind":"pieces"}\n')
        self.assertRegex(self.bad(*arguments), "of another source, /else; .*--restart")
        (partial / "reshard.journal").write_text("garbage\n")
        self.assertRegex(self.bad(*arguments), "reshard.journal: line 1 .*--restart")
        self.good(*arguments, "--restart")
        self.assertFalse(partial.exists())
        self.assertTrue(out.exists())


if __name__ == "__main__":
    unittest.main()
