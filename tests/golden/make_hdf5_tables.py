"""Writes the HDF5 files that the tests of Hdf5Table and Hdf5Dataset read, as h5py users write them.

  python3 tests/golden/make_hdf5_tables.py       # needs h5py, numpy

Element [i, j, k] of every dataset is 100 i + 10 j + k, or a value that its name tells. The files were made with
h5py 3.16.
"""

import pathlib

import h5py
import numpy as np

FOLDER = pathlib.Path(__file__).parent / "hdf5_tables"


def numbers(shape, dtype):
    values = np.zeros(shape, dtype=np.int64)
    for i, weight in zip(range(len(shape)), (100, 10, 1)):
        index = np.arange(shape[i]).reshape([-1 if k == i else 1 for k in range(len(shape))])
        values = values + weight * index
    return values.astype(dtype)


def main():
    FOLDER.mkdir(exist_ok=True)
    with h5py.File(FOLDER / "plain.h5", "w") as f:
        f["inputs"] = numbers((10, 3), "f4")
        f["targets"] = np.arange(10, dtype="i8") % 3
        f["group/doubles"] = numbers((10, 2, 2), "f8") + 0.25
        for name in ["f2", "u1", "i1", "i2", "u2", "i4", "u4", "u8"]:
            f[name] = np.arange(10, dtype=name)
        f["large"] = np.full(10, 2**64 - 1, dtype="u8")
        f["short"] = np.arange(9, dtype="f4")
        f["scalar"] = np.float32(1)
        f["empty"] = np.zeros((0, 3), dtype="f4")
        f["words"] = [b"a"] * 10
        f["big_endian"] = np.arange(10, dtype=">f4")
        create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        create.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((10, 3))
        compact = h5py.h5d.create(f.id, b"compact", h5py.h5t.IEEE_F32LE, space, create)
        compact.write(h5py.h5s.ALL, h5py.h5s.ALL, numbers((10, 3), "f4"))
    with h5py.File(FOLDER / "chunks.h5", "w") as f:
        def add(name, shape, chunks, dtype="f4", **options):
            f.create_dataset(name, data=numbers(shape, dtype), chunks=chunks, **options)

        add("rows", (25, 3), (4, 3))
        add("blocks", (25, 5, 7), (4, 2, 3))
        add("gzip", (25, 5, 7), (6, 5, 4), compression="gzip")
        add("all", (25, 5), (4, 3), dtype="f8", compression="gzip", shuffle=True, fletcher32=True)
        add("checksum", (25, 5), (4, 3), fletcher32=True)
        add("odd", (25,), (7,), dtype="u1", fletcher32=True)
        add("labels", (25,), (10,), dtype="i8", compression="gzip", shuffle=True)
        add("lzf", (25, 3), (4, 3), compression="lzf")
        f.create_dataset("unwritten", shape=(25, 3), chunks=(4, 3), dtype="f4")
    # MATLAB writes such a block, and NeXus files have soft links.
    with h5py.File(FOLDER / "user_block.h5", "w", userblock_size=512) as f:
        f["store/plain"] = numbers((10, 3), "f4")
        f.create_dataset("store/gzip", data=numbers((10, 3), "f4"), chunks=(4, 2), compression="gzip")
        f["inputs"] = h5py.SoftLink("/store/plain")
        f["alias"] = h5py.SoftLink("store")
        f["nowhere"] = h5py.SoftLink("/store/none")
        f["outside"] = h5py.ExternalLink("/etc/passwd", "/x")


if __name__ == "__main__":
    main()
