//! The exports of the module. Buffers are owned by a table, so that no pointer is ever dereferenced: an
//! address that the host invents is an error and not undefined behaviour.
#![expect(unsafe_code, reason = "the compiler counts the name of an export as unsafe")]

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Buffers that the host may read and write, by address.
static BUFFERS: Mutex<BTreeMap<usize, Box<[u8]>>> = Mutex::new(BTreeMap::new());

fn buffers() -> MutexGuard<'static, BTreeMap<usize, Box<[u8]>>> {
    BUFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(buffer: Box<[u8]>) -> usize {
    let address = buffer.as_ptr().expose_provenance();
    buffers().insert(address, buffer);
    address
}

/// Returns the address of a new buffer of `len` bytes, for a request.
#[unsafe(no_mangle)]
extern "C" fn alloc(len: usize) -> usize {
    keep(vec![0; len].into_boxed_slice())
}

/// Frees the buffer at `address`, of an answer.
#[unsafe(no_mangle)]
extern "C" fn free(address: usize, _len: usize) {
    buffers().remove(&address);
}

/// Answers the request in the first `len` bytes of the buffer at `address`, and frees it. The address of the
/// answer is in the upper 32 bits of the result, its length in the lower ones.
#[unsafe(no_mangle)]
extern "C" fn call(address: usize, len: usize) -> u64 {
    let request = buffers().remove(&address).unwrap_or_default();
    let answer = crate::call(request.get(..len).unwrap_or_default()).into_boxed_slice();
    let len = answer.len();
    (keep(answer) as u64) << 32 | len as u64
}
