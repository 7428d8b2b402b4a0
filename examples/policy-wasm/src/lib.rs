//! The placement policy `spread` as a WebAssembly module: every partition in the link domain with the most
//! free IPUs. `ipuctl policy check` tests it; `vipu-proxy --placement wasm:FILE` uses it.
#![expect(unsafe_code, reason = "the compiler counts the name of an export as unsafe")]

use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

#[derive(serde::Deserialize)]
struct Request {
    size: usize,
    parts: Vec<Part>,
}

/// The part of a link domain that is in one allocation.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    allocation: String,
    link_domain: u32,
    free: Vec<usize>,
}

/// Returns the chosen block, if there is one.
fn choose_block(Request { size, parts }: &Request) -> Option<Value> {
    if *size > 64 {
        // Whole link domains of one allocation.
        return parts
            .chunk_by(|a, b| a.allocation == b.allocation)
            .find_map(|parts| {
                let whole = parts.iter().filter(|part| part.free.len() == 64);
                let whole: Vec<u32> = whole.map(|part| part.link_domain).take(size / 64).collect();
                (whole.len() == size / 64).then(|| json!({"linkDomains": whole}))
            });
    }
    let blocks = parts.iter().filter_map(|part| {
        let is_free = |first: &usize| (*first..first + size).all(|ipu| part.free.contains(&ipu));
        let first = (0..64).step_by(*size).find(is_free)?;
        Some((
            part.free.len(),
            json!({"linkDomain": part.link_domain, "first": first, "size": size}),
        ))
    });
    // The last of several equals is the lowest, in reverse order.
    blocks.rev().max_by_key(|(free, _)| *free).map(|(_, block)| block)
}

/// The request, then the answer. Each choice has a new instance of the module.
static BUFFER: Mutex<Vec<u8>> = Mutex::new(Vec::new());

#[unsafe(no_mangle)]
extern "C" fn alloc(len: usize) -> usize {
    let mut buffer = BUFFER.lock().unwrap_or_else(PoisonError::into_inner);
    *buffer = vec![0; len];
    buffer.as_ptr().expose_provenance()
}

#[unsafe(no_mangle)]
extern "C" fn choose(_address: usize, _len: usize) -> u64 {
    let mut buffer = BUFFER.lock().unwrap_or_else(PoisonError::into_inner);
    let answer = match serde_json::from_slice(&buffer) {
        Ok(request) => json!({"ok": choose_block(&request)}),
        Err(error) => json!({"error": error.to_string()}),
    };
    *buffer = answer.to_string().into_bytes();
    (buffer.as_ptr().expose_provenance() as u64) << 32 | buffer.len() as u64
}
