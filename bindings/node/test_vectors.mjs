// Runs the vectors: `node test_vectors.mjs MODULE VECTORS`.

import { deepStrictEqual } from "node:assert";
import { readFileSync } from "node:fs";
import { IpuCore, IpuCoreError } from "./ipu_core.mjs";

const core = new IpuCore(process.argv[2]);
const vectors = JSON.parse(readFileSync(process.argv[3], "utf8"));

/** Returns the answer in the form of the vectors. */
function answer(request) {
  try {
    return { ok: core.call(request) };
  } catch (error) {
    if (!(error instanceof IpuCoreError)) throw error;
    return { error: error.message };
  }
}

for (const vector of vectors) deepStrictEqual(answer(vector.request), vector.answer, vector.name);
console.log(`${vectors.length} vectors`);
