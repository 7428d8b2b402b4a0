//! The decisions of `ipu-core` for other languages: one WebAssembly module, JSON in and JSON out.
//!
//! The module imports nothing. It exports its memory and three functions, where an answer is an address in
//! the upper and a length in the lower 32 bits:
//!
//! | Export | Effect |
//! |---|---|
//! | `alloc(len) -> address` | creates a buffer for a request |
//! | `call(address, len) -> answer` | answers the request, and frees its buffer |
//! | `free(address, len)` | frees the buffer of an answer |
//!
//! A request is an object with the field `call`; an answer is `{"ok": …}` or `{"error": "…"}`. All values
//! have the serialised form of the types of `ipu-core` with the same names. No function has a clock or a
//! state.

#[cfg(target_arch = "wasm32")]
mod ffi;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use ipu_core::allocator::{
    Change, ControllerView, Cordon, Ended, Entry, Event, Hardware, InventoryCapacity, Listing, Outcome,
    Policy, ServiceState, State, step,
};
use ipu_core::hardware::{Block, Inventory, IpuAddress, Partition, Topology};
use ipu_core::job::{JobSpec, Limits, Observation, Plan, RawJob, check_plan, plan};
use ipu_core::placement::{PlacementMode, PlacementRequest, place};
use ipu_core::{ControllerName, CordonOwner, PartitionId, Reason, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A request.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(
    tag = "call",
    rename_all = "snake_case",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
enum Request {
    /// The block of a partition, or the reason that it fits nowhere.
    Place {
        inventory: Hosted,
        request: PlacementRequest,
        #[serde(default)]
        policy: PlacementMode,
    },
    /// How many partitions of each size fit.
    Fits { inventory: Hosted },
    /// The plan for a job.
    Plan { job: RawJob, observation: Observation },
    /// The changes of an allocator that follow from an event, with the default policy.
    AllocatorStep {
        #[serde(default)]
        state: Record,
        controllers: Vec<Controller>,
        now: Timestamp,
        event: Event,
    },
    /// The invariants that a plan violates.
    Check {
        job: RawJob,
        observation: Observation,
        plan: Box<Plan>,
    },
}

/// An answer.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum Answer {
    Ok(Value),
    Error(String),
}

/// An inventory: hardware with its holders and cordons.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Hosted {
    topology: TopologyForm,
    #[serde(default)]
    held: BTreeMap<PartitionId, Block>,
    #[serde(default)]
    cordoned: BTreeMap<CordonOwner, Vec<IpuAddress>>,
}

/// A topology as text, such as `pod64`, or as an object.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
enum TopologyForm {
    Text(String),
    Object(#[cfg_attr(test, schemars(with = "Topology"))] Value),
}

/// A controller with the partitions that it lists.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Controller {
    name: ControllerName,
    topology: TopologyForm,
    #[serde(default)]
    partitions: Vec<Partition>,
    #[serde(default)]
    unhealthy: Vec<IpuAddress>,
    #[serde(default)]
    placement: PlacementMode,
}

/// The state of an allocator.
#[derive(Default, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
struct Record {
    entries: Vec<Entry>,
    cordons: Vec<Cordon>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
enum Placed {
    Fits(Block),
    Impossible(Reason),
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Stepped {
    /// To be committed in one write before the outcome is true.
    changes: Vec<Change>,
    /// The state with the changes.
    state: Record,
    outcome: Outcome,
    /// Requests that ended by this event, with the reason.
    ended: BTreeMap<PartitionId, String>,
}

/// Answers one request, both in JSON. Any bytes have an answer.
#[must_use]
pub fn call(request: &[u8]) -> Vec<u8> {
    let answer = match answer(request) {
        Ok(value) => Answer::Ok(value),
        Err(error) => Answer::Error(error),
    };
    // A value of strings and numbers always has a JSON form.
    serde_json::to_vec(&answer).unwrap_or_default()
}

fn answer(request: &[u8]) -> Result<Value, String> {
    let request: Value = serde_json::from_slice(request).map_err(text)?;
    match serde_json::from_value(request).map_err(text)? {
        Request::Place {
            inventory,
            request,
            policy,
        } => json(match place(&inventory.build()?, &request, policy.policy()) {
            Ok(block) => Placed::Fits(block),
            Err(why) => Placed::Impossible(why.into()),
        }),
        Request::Fits { inventory } => {
            let name = ControllerName::new("inventory").map_err(text)?;
            let capacity = InventoryCapacity::new(inventory.build()?);
            let hardware = Hardware::new(vec![view(name, Vec::new(), capacity)]);
            let fits = State::default().capacity_by_size(&hardware).pop();
            let (_, fits) = fits.ok_or("no inventory")?;
            json(fits.map_err(text)?)
        }
        Request::Plan { job, observation } => {
            let job = parse(&job, &observation)?;
            json(plan(&job, &observation))
        }
        Request::AllocatorStep {
            state,
            controllers,
            now,
            event,
        } => {
            let controllers = controllers.into_iter().map(Controller::view);
            let hardware = Hardware::new(controllers.collect::<Result<_, _>>()?);
            json(state.step(&hardware, now, &event)?)
        }
        Request::Check {
            job,
            observation,
            plan,
        } => {
            let broken = check_plan(&parse(&job, &observation)?, &observation, &plan);
            json(broken.iter().map(text).collect::<Vec<_>>())
        }
    }
}

/// Parses a job. Limits of an installation were checked when the job was accepted.
fn parse(job: &RawJob, observation: &Observation) -> Result<JobSpec, String> {
    if observation.format != Observation::FORMAT {
        return Err(format!(
            "observation.format = {}: this version supports format {}",
            observation.format,
            Observation::FORMAT
        ));
    }
    match job.clone().parse(&Limits::default().for_stored()) {
        Ok(parsed) => Ok(parsed.spec),
        Err(violations) => Err(violations.iter().map(text).collect::<Vec<_>>().join("\n")),
    }
}

fn view(name: ControllerName, partitions: Vec<Partition>, capacity: InventoryCapacity) -> ControllerView {
    ControllerView {
        name,
        service: ServiceState::Open,
        listing: Ok(Arc::new(Listing::new(partitions, Box::new(capacity)))),
        alias_of: None,
    }
}

impl TopologyForm {
    fn build(self) -> Result<Topology, String> {
        match self {
            Self::Text(text) => text.parse().map_err(|error| format!("topology: {error}")),
            Self::Object(value) => {
                serde_json::from_value(value).map_err(|error| format!("topology: {error}"))
            }
        }
    }
}

impl Hosted {
    fn build(self) -> Result<Inventory, String> {
        let mut inventory = Inventory::new(&self.topology.build()?);
        for (holder, block) in self.held {
            inventory.occupy(holder, block).map_err(text)?;
        }
        for (owner, ipus) in self.cordoned {
            inventory.cordon(&owner, ipus).map_err(text)?;
        }
        Ok(inventory)
    }
}

impl Controller {
    fn view(self) -> Result<ControllerView, String> {
        let topology = self.topology.build()?;
        let listed = Inventory::from_listing(&topology, &self.unhealthy, &self.partitions, |_| true);
        if let Some((id, conflict)) = listed.conflicts.first() {
            return Err(format!("controller {}, partition {id}: {conflict}", self.name));
        }
        let capacity = InventoryCapacity::new(listed.inventory).with_placement(self.placement);
        Ok(view(self.name, self.partitions, capacity))
    }
}

impl Record {
    fn step(self, hardware: &Hardware, now: Timestamp, event: &Event) -> Result<Stepped, String> {
        let mut state = State::new(self.entries, self.cordons);
        let step = step(&state, hardware, &Policy::default(), now, event).map_err(text)?;
        for change in &step.changes {
            state.apply(change);
        }
        let ended = step.ended.into_iter().map(|(id, end)| match end {
            Ended::Refused(refusal) => (id, refusal.message),
            Ended::Foreign(error) => (id, error.to_string()),
        });
        Ok(Stepped {
            changes: step.changes,
            state: Self {
                entries: state.entries().map(|entry| Entry::clone(entry)).collect(),
                cordons: state.cordons().map(|cordon| Cordon::clone(cordon)).collect(),
            },
            outcome: step.outcome,
            ended: ended.collect(),
        })
    }
}

fn json(value: impl Serialize) -> Result<Value, String> {
    serde_json::to_value(value).map_err(text)
}

fn text(value: impl ToString) -> String {
    value.to_string()
}
