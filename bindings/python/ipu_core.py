"""The decisions of ipu-core in Python: a thin wrapper of the WebAssembly module, by wasmtime."""

import json

from wasmtime import Engine, Instance, Module, Store


class IpuCoreError(Exception):
    """A request that the module refuses. The message has the rule."""


class IpuCore:
    """An instance of the module in one file. It has no state, and serves one thread at a time."""

    def __init__(self, path):
        """Loads the module from the file `path`."""
        self._store = Store(Engine())
        module = Module.from_file(self._store.engine, path)
        exports = Instance(self._store, module, []).exports(self._store)
        self._memory, self._alloc = exports["memory"], exports["alloc"]
        self._call, self._free = exports["call"], exports["free"]

    def call(self, request):
        """Answers one request, a dict with the key `call`."""
        data = json.dumps(request).encode()
        address = self._alloc(self._store, len(data))
        self._memory.write(self._store, data, address)
        # The address of the answer is in the upper 32 bits. Python's numbers from the module are signed.
        answer = self._call(self._store, address, len(data)) & 0xFFFF_FFFF_FFFF_FFFF
        address, length = answer >> 32, answer & 0xFFFF_FFFF
        text = self._memory.read(self._store, address, address + length)
        self._free(self._store, address, length)
        result = json.loads(text)
        if "error" in result:
            raise IpuCoreError(result["error"])
        return result["ok"]

    def place(self, inventory, request, policy="first-fit"):
        """Returns `{"fits": block}`, or `{"impossible": reason}`."""
        return self.call({"call": "place", "inventory": inventory, "request": request, "policy": policy})

    def fits(self, inventory):
        """Returns the number of free IPUs, and how many partitions of each size fit."""
        return self.call({"call": "fits", "inventory": inventory})

    def plan(self, job, observation):
        """Returns the plan for a job in its observed state."""
        return self.call({"call": "plan", "job": job, "observation": observation})

    def allocator_step(self, state, controllers, now, event):
        """Returns the changes that follow from an event, the new state and the outcome."""
        request = {"state": state, "controllers": controllers, "now": now, "event": event}
        return self.call({"call": "allocator_step", **request})

    def check(self, job, observation, plan):
        """Returns the invariants that a plan violates; empty for a valid plan."""
        return self.call({"call": "check", "job": job, "observation": observation, "plan": plan})
