//! A placement policy in a WebAssembly module: interpreted without host functions, with limits.

use std::error::Error;
use std::io;
use std::path::Path;

use ipu_core::hardware::{Block, Inventory, InventoryView, Topology};
use ipu_core::placement::{PlacementPolicy, PlacementRequest};
use ipu_core::{AllocationId, ErrorChain, IpuCount};
use serde::{Deserialize, Serialize};
use wasmi::{Config, Engine, Linker, Module, Store, StoreLimitsBuilder};

/// Maximum fuel of one choice, about one unit per instruction: half a second of the task that owns the state.
/// Reading a request of 65,536 IPUs takes a tenth of it.
const FUEL: u64 = 100_000_000;
/// Maximum memory of a policy in bytes: a hundred times the request of 65,536 IPUs.
const MEMORY: usize = 64 << 20;
/// Maximum number of elements of a table: far more functions than a policy has.
const TABLE: usize = 10_000;

/// The policy in a WebAssembly module. Its name is `wasm:FILE`.
///
/// The module exports its memory, `alloc(len) -> address` and `choose(address, len) -> answer`, where the
/// answer is an address in the upper and a length in the lower 32 bits. Every choice is made by a new
/// instance of the module, so that a policy cannot have a state.
///
/// `choose` gets the request as JSON at the allocated address. `parts` has an object for each link domain of
/// each allocation that the partition may use. The numbers are those of IPUs in the link domain:
///
/// ```json
/// {"size": 4, "parts": [{"allocation": "cl1", "linkDomain": 0, "free": [2, 3, 4, 5], "used": [0, 1]}]}
/// ```
///
/// The answer is `{"ok": BLOCK}`, `{"ok": null}` to decline, or `{"error": TEXT}`. A block is one of
///
/// ```json
/// {"linkDomain": 0, "first": 4, "size": 4}
/// {"linkDomains": [0, 1]}
/// ```
///
/// A policy that fails, or exceeds a limit, declines: the cause is in the log.
#[derive(Clone)]
pub struct WasmPolicy {
    name: String,
    module: Module,
}

/// The reason that a file is not a policy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WasmPolicyError {
    /// The file cannot be read.
    #[error("the file cannot be read; name a WebAssembly module")]
    Read(#[source] io::Error),
    /// The file is not a module.
    #[error("the file is not a WebAssembly module; compile the policy for wasm32-unknown-unknown")]
    Module(#[source] Box<dyn Error + Send + Sync>),
    /// The module cannot place one IPU in an empty IPU-POD.
    #[error(
        "a test choice fails; a policy imports nothing, exports memory, alloc and choose, and answers in JSON"
    )]
    TestChoice(#[source] Box<dyn Error + Send + Sync>),
}

/// The reason that a choice failed.
#[derive(Debug, thiserror::Error)]
enum ChoiceError {
    #[error("{0}")]
    Wasm(#[from] wasmi::Error),
    #[error("it exports no memory")]
    NoMemory,
    #[error("its buffer at {address} is not in its memory")]
    Buffer { address: u64 },
    #[error("its answer is not in the documented form")]
    Json(#[from] serde_json::Error),
    #[error("it reports: {0}")]
    Reported(String),
}

#[derive(Serialize)]
struct Request<'a> {
    size: IpuCount,
    parts: Vec<Part<'a>>,
}

/// The part of a link domain that is in one allocation.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Part<'a> {
    allocation: &'a AllocationId,
    link_domain: u32,
    free: Vec<u32>,
    used: Vec<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Answer {
    Ok(Option<Block>),
    Error(String),
}

impl WasmPolicy {
    /// Loads the policy in `file`, and lets it choose once.
    ///
    /// # Errors
    ///
    /// [`WasmPolicyError`] with the fix. A policy that declines one IPU of an empty IPU-POD is not an error.
    pub fn load(file: &Path) -> Result<Self, WasmPolicyError> {
        let code = std::fs::read(file).map_err(WasmPolicyError::Read)?;
        let mut config = Config::default();
        config.consume_fuel(true);
        let invalid = |error: wasmi::Error| WasmPolicyError::Module(error.into());
        let policy = Self {
            name: format!("wasm:{}", file.display()),
            module: Module::new(&Engine::new(&config), &code).map_err(invalid)?,
        };
        let inventory = Inventory::new(&Topology::pod4());
        let request = PlacementRequest::of_size(IpuCount::ONE);
        let tested = policy.try_choose(&inventory.whole_view(), &request);
        tested.map_err(|cause| WasmPolicyError::TestChoice(cause.into()))?;
        Ok(policy)
    }

    fn try_choose(
        &self,
        view: &InventoryView<'_>,
        request: &PlacementRequest,
    ) -> Result<Option<Block>, ChoiceError> {
        let request = serde_json::to_vec(&Request::new(view, request.size))?;
        let limits = StoreLimitsBuilder::new()
            .memory_size(MEMORY)
            .table_elements(TABLE)
            .build();
        let mut store = Store::new(self.module.engine(), limits);
        store.limiter(|limits| limits);
        store.set_fuel(FUEL)?;
        let instance = Linker::new(self.module.engine()).instantiate_and_start(&mut store, &self.module)?;
        let memory = instance
            .get_memory(&store, "memory")
            .ok_or(ChoiceError::NoMemory)?;
        let alloc = instance.get_typed_func::<u32, u32>(&store, "alloc")?;
        let choose = instance.get_typed_func::<(u32, u32), u64>(&store, "choose")?;

        let buffer = |address: u64| ChoiceError::Buffer { address };
        let len = u32::try_from(request.len()).unwrap_or(u32::MAX);
        let address = alloc.call(&mut store, len)?;
        let written = memory.write(&mut store, address as usize, &request);
        written.map_err(|_| buffer(address.into()))?;
        let answer = choose.call(&mut store, (address, len))?;
        let (address, len) = ((answer >> 32) as usize, answer as u32 as usize);
        let answer = memory.data(&store).get(address..address.saturating_add(len));
        match serde_json::from_slice(answer.ok_or_else(|| buffer(address as u64))?)? {
            Answer::Ok(block) => Ok(block),
            Answer::Error(text) => Err(ChoiceError::Reported(text)),
        }
    }
}

impl PlacementPolicy for WasmPolicy {
    fn name(&self) -> &str {
        &self.name
    }

    fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
        self.try_choose(view, request).unwrap_or_else(|error| {
            let error = ErrorChain(&error);
            tracing::error!(policy = self.name, size = %request.size, %error, "the placement policy failed");
            None
        })
    }
}

impl std::fmt::Debug for WasmPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WasmPolicy").field(&self.name).finish()
    }
}

impl<'a> Request<'a> {
    fn new(view: &InventoryView<'a>, size: IpuCount) -> Self {
        let inventory = view.inventory();
        let topology = inventory.topology();
        let is_visible = |id: &AllocationId| view.allocation().is_none_or(|only| only == id);
        let allocations = topology.allocations().iter().map(|allocation| &allocation.id);
        let mut parts = Vec::new();
        for allocation in allocations.filter(|id| is_visible(id)) {
            let Ok(view) = inventory.view(Some(allocation)) else {
                continue;
            };
            for link_domain in 0..topology.link_domains() {
                let (ipus, free) = (view.ipu_mask(link_domain), inventory.free_mask(link_domain));
                if ipus != 0 {
                    parts.push(Part {
                        allocation,
                        link_domain,
                        free: numbers(ipus & free),
                        used: numbers(ipus & !free),
                    });
                }
            }
        }
        Self { size, parts }
    }
}

/// Returns the numbers of the bits that are set.
fn numbers(mask: u64) -> Vec<u32> {
    (0..u64::BITS).filter(|bit| mask >> bit & 1 == 1).collect()
}

#[cfg(test)]
mod tests {
    use ipu_core::hardware::{Inventory, Topology};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_gets_the_free_and_the_used_ipus_of_each_link_domain() {
        let mut inventory = Inventory::new(&Topology::pod16());
        let block = serde_json::from_value(json!({"linkDomain": 0, "first": 4, "size": 4})).unwrap();
        inventory.occupy("a".parse().unwrap(), block).unwrap();
        let size = IpuCount::try_from(8).unwrap();
        let request = Request::new(&inventory.view(None).unwrap(), size);
        let parts = &serde_json::to_value(request).unwrap()["parts"];
        assert_eq!(parts[0]["used"], json!([4, 5, 6, 7]));
        assert_eq!(
            parts[0]["free"],
            json!([0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15])
        );
    }
}
