#!/usr/bin/env python3
"""`pliant convert` and `pliant store` over checkpoints of other programs.

The files are made with the standard library alone: safetensors by struct and json, torch's by
pickle and zipfile over classes that carry torch's names. Where safetensors can be imported, it
writes and reads them too. What torch 2.11 wrote stands in data/.
"""

import collections
import importlib.util
import io
import json
import os
import pathlib
import pickle
import resource
import struct
import subprocess
import sys
import tarfile
import tempfile
import types
import unittest
import zipfile

from launched import LIMIT_S, PROGRAM, Commands, environment

DATA = pathlib.Path(__file__).parent / "data"


def pattern(size, salt=0):
    return bytes((i * 7 + salt) % 251 for i in range(size))


def write_safetensors(path, tensors, metadata=None):
    """tensors: name -> (dtype, shape, bytes)"""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, elements) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(elements)]}
        data += elements
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, about in header.items():
        begin, end = about["data_offsets"]
        tensors[name] = (about["dtype"], about["shape"], raw[8 + length:][begin:end])
    return tensors, metadata


class Torch:
    """Stand-ins that are pickled under torch's names."""

    def __init__(self):
        for name in ["torch", "torch._utils", "torch.distributed",
                     "torch.distributed._shard", "torch.distributed._shard.checkpoint",
                     "torch.distributed._shard.checkpoint.metadata",
                     "torch.distributed._shard.checkpoint.filesystem"]:
            sys.modules[name] = types.ModuleType(name)
        self.float32 = self.constant("float32")
        self.FloatStorage = self.define("torch", "FloatStorage")
        self.rebuild = self.function("torch._utils", "_rebuild_tensor_v2")
        self.size = self.function("torch", "Size")
        metadata = "torch.distributed._shard.checkpoint.metadata"
        for name in ["Metadata", "TensorStorageMetadata", "ChunkStorageMetadata",
                     "BytesStorageMetadata", "MetadataIndex", "TensorProperties"]:
            setattr(self, name, self.define(metadata, name))
        self.StorageInfo = self.define("torch.distributed._shard.checkpoint.filesystem",
                                       "_StorageInfo")

    @staticmethod
    def define(module, name):
        made = type(name, (), {"__module__": module, "__qualname__": name})
        setattr(sys.modules[module], name, made)
        return made

    @staticmethod
    def function(module, name):
        def made():
            raise AssertionError("nothing is called")
        made.__module__, made.__name__, made.__qualname__ = module, name, name
        setattr(sys.modules[module], name, made)
        return made

    @staticmethod
    def constant(name):
        kind = type("dtype", (), {"__module__": "torch", "__reduce__": lambda self: name})
        value = kind()
        value.__module__ = "torch"
        setattr(sys.modules["torch"], name, value)
        return value

    def make(self, kind, **attributes):
        made = kind()
        made.__dict__.update(attributes)
        return made

    def sizes(self, *numbers):
        return Call(self.size, (tuple(numbers),))

    def save(self, value, protocol=2):
        """The bytes of torch.save(value)."""
        storages = []

        class Pickler(pickle.Pickler):
            def persistent_id(self, item):
                return item.reference if isinstance(item, Storage) else None

        def tensor(item):
            key = str(len(storages))
            storages.append(item.elements)
            storage = Storage(("storage", self.FloatStorage, key, "cpu", len(item.elements) // 4))
            return Call(self.rebuild, (storage, item.offset, item.shape, item.strides, False,
                                       collections.OrderedDict()))

        def replaced(item):
            if isinstance(item, Tensor):
                return tensor(item)
            if isinstance(item, dict):
                return type(item)((k, replaced(v)) for k, v in item.items())
            return [replaced(v) for v in item] if isinstance(item, list) else item

        program, whole = io.BytesIO(), io.BytesIO()
        Pickler(program, protocol).dump(replaced(value))
        with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("archive/data.pkl", program.getvalue())
            archive.writestr("archive/byteorder", "little")
            for key, elements in enumerate(storages):
                archive.writestr(f"archive/data/{key}", elements)
            archive.writestr("archive/version", "3\n")
        return whole.getvalue()


class Storage:
    def __init__(self, reference):
        self.reference = reference


class Call:
    """Something that unpickling would call."""

    def __init__(self, what, arguments):
        self.reduced = (what, arguments)

    def __reduce__(self):
        return self.reduced


# Loads what we wrote, and writes it again in torch's own formats.
TORCH_SCRIPT = """
import sys, torch
import torch.distributed.checkpoint as dcp
folder = sys.argv[1]
state = {"big": torch.zeros(400, 50), "half": torch.zeros(30, 3, dtype=torch.bfloat16)}
dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(folder + "/pieces"))
torch.save(state, folder + "/saved.pt")
dcp.save(state, checkpoint_id=folder + "/dcp")
"""
HAS_TORCH = importlib.util.find_spec("torch") is not None and subprocess.run(
    [sys.executable, "-c",
     "import torch.distributed.checkpoint as c, safetensors; c.HuggingFaceStorageReader"],
    capture_output=True, check=False).returncode == 0

Tensor = collections.namedtuple("Tensor", "elements offset shape strides")


class Convert(Commands):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.source = self.folder / "source.safetensors"
        self.tensors = {"big": ("F32", [400, 50], pattern(80000)),
                        "half": ("BF16", [30, 3], pattern(180, 1)),
                        "flag": ("BOOL", [3], b"\1\0\1"), "f8": ("F8_E4M3", [4], pattern(4)),
                        "scalar": ("I64", [], pattern(8, 2)), "none": ("F32", [0, 4], b"")}
        write_safetensors(self.source, self.tensors, {"format": "pt", "origin": "a test"})

    def checksums(self, path):
        report = json.loads(self.good("store", "verify", path, "--json"))
        return {t["name"]: t["checksum"] for t in report["tensors"]}

    def test_round_trips_keep_every_byte(self):
        before = self.checksums(self.source)
        self.good("convert", self.source, self.folder / "sharded", "--to", "sharded",
                  "--max-shard", "50K")
        self.good("convert", self.folder / "sharded", self.folder / "pieces", "--to",
                  "dcp-safetensors", "--max-shard", "30K")
        self.good("convert", self.folder / "pieces", self.folder / "one.safetensors",
                  "--memory", "1M")
        tensors, metadata = read_safetensors(self.folder / "one.safetensors")
        self.assertEqual(tensors, self.tensors)
        self.assertEqual(metadata["format"], "pt")
        self.assertEqual(metadata["origin"], "a test")
        for name in ["sharded", "pieces", "one.safetensors"]:
            self.assertEqual(self.checksums(self.folder / name), before)

    def test_pieces_say_where_they_belong(self):
        report = json.loads(self.good("convert", self.source, self.folder / "pieces", "--to",
                                      "dcp-safetensors", "--max-shard", "30K", "--json"))
        self.assertEqual(report["files"], 3)
        self.assertEqual(len(report["warnings"]), 2)
        rows = []
        for path in sorted((self.folder / "pieces").glob("*.safetensors")):
            tensors, metadata = read_safetensors(path)
            sharding = json.loads(metadata["DCP_SHARDING_INFO"])
            self.assertEqual(set(sharding), set(tensors))
            self.assertEqual(float(metadata["DCP_VERSION"]), 1.0)
            if "big" in tensors:
                rows.append((sharding["big"]["saved_offsets"], tensors["big"][1]))
        self.assertEqual(rows, [([0, 0], [134, 50]), ([134, 0], [134, 50]), ([268, 0], [132, 50])])

    def test_an_index_names_every_tensor(self):
        self.good("convert", self.source, self.folder / "s", "--to", "sharded",
                  "--max-shard", "100")
        index = json.loads((self.folder / "s" / "model.safetensors.index.json").read_text())
        self.assertEqual(index["metadata"]["total_size"],
                         sum(len(elements) for _, _, elements in self.tensors.values()))
        self.assertEqual(set(index["weight_map"]), set(self.tensors))
        for name, file in index["weight_map"].items():
            self.assertEqual(read_safetensors(self.folder / "s" / file)[0][name],
                             self.tensors[name])

    def test_selection(self):
        self.good("convert", self.source, self.folder / "x", "--select", "b*", "--select", "f8")
        self.assertEqual(set(read_safetensors(self.folder / "x")[0]), {"big", "f8"})
        self.assertRegex(self.bad("convert", self.source, self.folder / "y", "--select", "b*",
                                  "--select", "nobody"), "no tensor matches 'nobody'.*store ls")

    def test_a_destination_that_exists_stays(self):
        target = self.folder / "x"
        target.write_text("old")
        self.assertIn("--force", self.bad("convert", self.source, target))
        self.assertEqual(target.read_text(), "old")
        self.good("convert", self.source, target, "--force")
        self.assertEqual(read_safetensors(target)[0], self.tensors)
        folder = self.folder / "d"
        self.good("convert", self.source, folder, "--to", "sharded")
        (folder / "mine.txt").write_text("x")
        self.assertIn("exists", self.bad("convert", self.source, folder, "--to", "sharded"))
        self.good("convert", self.source, folder, "--to", "dcp-safetensors", "--force")
        self.assertFalse((folder / "mine.txt").exists())
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()),
                         ["d", "source.safetensors", "x"])

    def test_a_full_disk_leaves_the_old_file(self):
        target = self.folder / "x"
        target.write_text("old")

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

        # Python ignores SIGXFSZ, and so does the program if signals are not restored.
        done = subprocess.run([PROGRAM, "convert", self.source, target, "--force"],
                              capture_output=True, text=True, timeout=LIMIT_S, env=environment(),
                              preexec_fn=limit, restore_signals=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(str(target), done.stderr)
        self.assertEqual(target.read_text(), "old")
        self.assertEqual(len(list(self.folder.iterdir())), 2)

    def test_damaged_files_are_named(self):
        raw = self.source.read_bytes()
        cut = self.folder / "cut.safetensors"
        cut.write_bytes(raw[:-10])
        self.assertRegex(self.bad("store", "verify", cut),
                         r"cut\.safetensors: tensor '\w+' lies at")
        for size in [0, 7, 8, 100]:
            cut.write_bytes(raw[:size])
            self.assertIn("cut.safetensors", self.bad("store", "ls", cut))
        self.bad("convert", cut, self.folder / "x")
        self.assertFalse((self.folder / "x").exists())
        self.assertIn("does not exist", self.bad("store", "stat", self.folder / "absent"))

    def test_torch_files_are_read_and_nothing_runs(self):
        torch = Torch()
        marker = self.folder / "executed"
        floats = struct.pack("<6f", *range(6))
        state = collections.OrderedDict(w=Tensor(floats, 0, (2, 3), (3, 1)),
                                        t=Tensor(floats, 0, (3, 2), (1, 3)))
        evil = Call(os.system, (f"touch {marker}",))
        path = self.folder / "x.pt"
        for protocol in [2, 3, 4, 5]:
            path.write_bytes(torch.save({"model": state, "step": 7, "groups": [{"lr": 0.5}],
                                         "evil": evil}, protocol))
            self.good("convert", path, self.folder / "x.safetensors", "--force")
            self.assertFalse(marker.exists())
            tensors, metadata = read_safetensors(self.folder / "x.safetensors")
            self.assertEqual(tensors["model.w"], ("F32", [2, 3], floats))
            self.assertEqual(tensors["model.t"],
                             ("F32", [3, 2], struct.pack("<6f", 0, 3, 1, 4, 2, 5)))
            values = json.loads(metadata["pliant_values"])
            self.assertEqual((values["step"], values["groups.0.lr"]), (7, 0.5))
            self.assertIn("system", values["evil"]["object"])

    def test_dcp_of_torch_1_13_is_read(self):
        torch = Torch()
        folder = self.folder / "dcp"
        folder.mkdir()
        floats = [struct.pack("<4f", *range(4)), struct.pack("<2f", 4, 5)]
        blobs = [torch.save(Tensor(floats[0], 0, (2, 2), (2, 1))),
                 torch.save(Tensor(floats[1], 0, (1, 2), (2, 1))), torch.save(11)]
        (folder / "__0_0.distcp").write_bytes(blobs[2] + blobs[0])
        (folder / "__1_0.distcp").write_bytes(blobs[1])
        make, sizes = torch.make, torch.sizes

        def place(file, offset, blob):
            return make(torch.StorageInfo, relative_path=file, offset=offset, length=len(blob))

        properties = make(torch.TensorProperties, dtype=torch.float32, requires_grad=False)
        chunks = [make(torch.ChunkStorageMetadata, offsets=sizes(0, 0), sizes=sizes(2, 2)),
                  make(torch.ChunkStorageMetadata, offsets=sizes(2, 0), sizes=sizes(1, 2))]
        metadata = make(
            torch.Metadata, planner_data=None,
            state_dict_metadata={
                "w": make(torch.TensorStorageMetadata, properties=properties, size=sizes(3, 2),
                          chunks=chunks),
                "step": make(torch.BytesStorageMetadata)},
            storage_data={
                make(torch.MetadataIndex, fqn="w", offset=sizes(0, 0), index=0):
                    place("__0_0.distcp", len(blobs[2]), blobs[0]),
                make(torch.MetadataIndex, fqn="w", offset=sizes(2, 0), index=1):
                    place("__1_0.distcp", 0, blobs[1]),
                make(torch.MetadataIndex, fqn="step", offset=None, index=None):
                    place("__0_0.distcp", 0, blobs[2])})
        (folder / ".metadata").write_bytes(pickle.dumps(metadata))
        self.good("convert", folder, self.folder / "x.safetensors")
        tensors, about = read_safetensors(self.folder / "x.safetensors")
        self.assertEqual(tensors, {"w": ("F32", [3, 2], floats[0] + floats[1])})
        self.assertEqual(json.loads(about["pliant_values"]), {"step": 11})
        (folder / "__1_0.distcp").unlink()
        self.assertRegex(self.bad("store", "verify", folder), r"__1_0\.distcp.*")

    def test_what_torch_2_11_wrote(self):
        archive = DATA / "torch_2_11.tar.gz"
        with tarfile.open(archive) as files:
            files.extractall(self.folder)
        made = self.folder / "torch_2_11"
        truth = self.checksums(made / "all.safetensors")
        found = self.checksums(made / "dcp")
        self.assertEqual(found, {f"model.{name}": checksum for name, checksum in truth.items()})
        listed = json.loads(self.good("store", "ls", made / "dcp", "--json"))
        self.assertEqual(listed["values"]["opt.betas"], [0.9, 0.95])
        self.assertEqual(listed["values"]["opt.step"], 7)
        saved = self.checksums(made / "a.pt")
        views = self.checksums(made / "views.safetensors")
        for name, checksum in truth.items():
            self.assertEqual(saved["model." + name], checksum, name)
        for name, full in [("t", "t"), ("row", "row"), ("lw", "lin.weight"), ("lb", "lin.bias")]:
            self.assertEqual(saved[full], views[name], name)
        self.assertEqual(saved["same"], truth["w"])
        self.assertEqual(self.checksums(made / "hf"),
                         {name: truth[name] for name in ["w", "c", "b", "h", "i"]})
        self.assertIn("before 1.6", self.bad("store", "ls", made / "old.pt"))

    @unittest.skipUnless(importlib.util.find_spec("safetensors") and
                         importlib.util.find_spec("numpy"), "no safetensors for Python")
    def test_safetensors_for_python(self):
        script = ("import sys, numpy, safetensors.numpy as s\n"
                  "s.save_file({'a': numpy.arange(6.).reshape(2, 3)}, sys.argv[1])\n"
                  "print(s.load_file(sys.argv[2])['scalar'])")
        self.good("convert", self.source, self.folder / "ours", "--select", "scalar")
        done = subprocess.run([sys.executable, "-c", script, self.folder / "theirs",
                               self.folder / "ours"], capture_output=True, text=True,
                              timeout=LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(int(done.stdout), struct.unpack("<q", self.tensors["scalar"][2])[0])
        self.good("store", "verify", self.folder / "theirs")

    @unittest.skipUnless(HAS_TORCH, "no torch with checkpoints of safetensors")
    def test_torch_itself(self):
        self.good("convert", self.source, self.folder / "pieces", "--to", "dcp-safetensors",
                  "--max-shard", "30K", "--select", "big", "--select", "half")
        done = subprocess.run([sys.executable, "-c", TORCH_SCRIPT, self.folder],
                              capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        before = self.checksums(self.source)
        for name in ["saved.pt", "dcp"]:
            self.assertEqual(self.checksums(self.folder / name),
                             {tensor: before[tensor] for tensor in ["big", "half"]})

    def test_listing(self):
        text = self.good("store", "ls", self.source)
        self.assertRegex(text, r"big +f32 +78\.1 KiB +\[400, 50\]")
        listed = json.loads(self.good("store", "ls", self.source, "--json", "--select", "half"))
        self.assertEqual(listed["tensors"], [{"name": "half", "dtype": "bf16", "shape": [30, 3],
                                              "bytes": 180, "pieces": 1}])
        stat = json.loads(self.good("store", "stat", self.source, "--json"))
        self.assertEqual(stat["dtypes"]["f32"], {"tensors": 2, "elements": 20000, "bytes": 80000})
        write_safetensors(self.folder / "n", {"x": ("F32", [3], struct.pack(
            "<3f", float("nan"), float("inf"), 1))})
        self.assertIn("x: 1 NaN, 1 infinite",
                      self.good("store", "verify", self.folder / "n", "--not-numbers"))

    def test_usage(self):
        self.assertIn("--to takes", self.bad("convert", self.source, "x", "--to", "tar", code=2))
        self.assertIn("--memory", self.bad("convert", self.source, "x", "--memory", "?", code=2))
        self.assertIn("--max-shard", self.bad("convert", self.source, "x", "--max-shard", "0",
                                              code=2))
        self.assertIn("at least", self.bad("convert", self.source, self.folder / "x", "--memory",
                                           "1K"))
        self.bad("convert", self.source, code=2)
        self.bad("store", "ls", code=2)
        for words in [["convert"], ["store"], ["store", "verify"]]:
            self.assertIn("Examples", self.good(*words, "--help"))


if __name__ == "__main__":
    unittest.main()
