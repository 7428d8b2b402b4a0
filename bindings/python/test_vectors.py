"""Runs the vectors: `python3 test_vectors.py MODULE VECTORS`."""

import json
import sys

from ipu_core import IpuCore, IpuCoreError


def answer(core, request):
    """Returns the answer in the form of the vectors."""
    try:
        return {"ok": core.call(request)}
    except IpuCoreError as error:
        return {"error": str(error)}


core = IpuCore(sys.argv[1])
with open(sys.argv[2], encoding="utf-8") as file:
    vectors = json.load(file)
for vector in vectors:
    found = answer(core, vector["request"])
    assert found == vector["answer"], f"{vector['name']}: {found}"
print(f"{len(vectors)} vectors")
