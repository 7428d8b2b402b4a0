// The decisions of ipu-core in JavaScript: a thin wrapper of the WebAssembly module, without dependencies.

import { readFileSync } from "node:fs";

/** A request that the module refuses. The message has the rule. */
export class IpuCoreError extends Error {}

/** An instance of the module in one file. It has no state. */
export class IpuCore {
  #exports;

  /** Loads the module from the file `path`. */
  constructor(path) {
    this.#exports = new WebAssembly.Instance(new WebAssembly.Module(readFileSync(path))).exports;
  }

  /** Answers one request, an object with the field `call`. */
  call(request) {
    const { memory, alloc, call, free } = this.#exports;
    const data = new TextEncoder().encode(JSON.stringify(request));
    const sent = alloc(data.length) >>> 0;
    new Uint8Array(memory.buffer, sent, data.length).set(data);
    // The address of the answer is in the upper 32 bits. The call may have replaced the buffer of the memory.
    const answer = BigInt.asUintN(64, call(sent, data.length));
    const [address, length] = [Number(answer >> 32n), Number(answer & 0xffffffffn)];
    const text = new TextDecoder().decode(new Uint8Array(memory.buffer, address, length));
    free(address, length);
    const result = JSON.parse(text);
    if ("error" in result) throw new IpuCoreError(result.error);
    return result.ok;
  }

  /** Returns `{fits: block}`, or `{impossible: reason}`. */
  place(inventory, request, policy = "first-fit") {
    return this.call({ call: "place", inventory, request, policy });
  }

  /** Returns the number of free IPUs, and how many partitions of each size fit. */
  fits(inventory) {
    return this.call({ call: "fits", inventory });
  }

  /** Returns the plan for a job in its observed state. */
  plan(job, observation) {
    return this.call({ call: "plan", job, observation });
  }

  /** Returns the changes that follow from an event, the new state and the outcome. */
  allocatorStep(state, controllers, now, event) {
    return this.call({ call: "allocator_step", state, controllers, now, event });
  }

  /** Returns the invariants that a plan violates; empty for a valid plan. */
  check(job, observation, plan) {
    return this.call({ call: "check", job, observation, plan });
  }
}
