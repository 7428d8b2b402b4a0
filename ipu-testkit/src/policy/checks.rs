//! What one answer of a policy is held against.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use ipu_core::{
    Block, Impossible, Inventory, IpuAddress, IpuCount, Placement, PlacementPolicy, PlacementRequest, place,
};

use super::property::{BrokenProperty, PolicyProperty, Reproduction};
use crate::reference_inventory::ReferenceInventory;
use crate::strategies::InventoryChange;

/// Answers a legal block that costs less than the one given, if there is one.
pub(super) type Cheaper = dyn Fn(&ReferenceInventory, &PlacementRequest, &Block) -> Option<Block>;

/// How often the same is asked again.
pub(super) const REPEATS: usize = 4;

/// Blocks of one size are placed until nothing fits if no more than this fit: enough to fill a link domain with IPUs.
const FILL_LIMIT: u32 = 64;

/// What is asked of a policy.
pub(super) struct PropertyChecker<'a> {
    pub(super) make: &'a dyn Fn() -> Box<dyn PlacementPolicy + 'a>,
    pub(super) may_decline: bool,
    pub(super) cheaper: Option<&'a Cheaper>,
}

/// Where a policy is asked.
#[derive(Clone, Copy)]
pub(super) struct PolicyCase<'a> {
    pub(super) reference: &'a ReferenceInventory,
    pub(super) inventory: &'a Inventory,
    pub(super) history: &'a [InventoryChange],
    pub(super) request: &'a PlacementRequest,
}

impl PolicyCase<'_> {
    fn broken(&self, property: PolicyProperty, what: String, shown_by: Reproduction) -> Box<BrokenProperty> {
        Box::new(BrokenProperty {
            property,
            what,
            shown_by,
            reference: self.reference.clone(),
            history: self.history.to_vec(),
            request: self.request.clone(),
        })
    }

    fn asked(&self) -> String {
        let size = self.request.size;
        let ipus = if size == IpuCount::ONE { "IPU" } else { "IPUs" };
        match &self.request.allocation {
            Some(allocation) => format!("{size} {ipus} of allocation {allocation}"),
            None => format!("{size} {ipus}"),
        }
    }
}

impl PropertyChecker<'_> {
    /// Everything that is asked in one situation. Answers the placement.
    pub(super) fn situation(&self, scene: PolicyCase<'_>) -> Result<Placement, Box<BrokenProperty>> {
        let policy = (self.make)();
        let placement = self.answer(scene, &*policy)?;
        self.same_again(scene, &*policy, &placement)?;
        self.same_after_others(scene, &*policy, &placement)?;
        self.same_when_rebuilt(scene, &*policy, &placement)?;
        self.fills_up(scene, &*policy)?;
        Ok(placement)
    }

    /// What is asked of one answer.
    pub(super) fn answer(
        &self,
        scene: PolicyCase<'_>,
        policy: &dyn PlacementPolicy,
    ) -> Result<Placement, Box<BrokenProperty>> {
        let placement = ask(scene, scene.inventory, policy)?;
        let chosen = match &placement {
            Placement::Fits(block) | Placement::Impossible(Impossible::Illegal { block, .. }) => Some(block),
            _ => None,
        };
        if let Some((block, property)) =
            chosen.and_then(|block| Some((block, broken_rule(scene.reference, scene.request, block)?)))
        {
            let what = format!("for {} it chooses {}", scene.asked(), named(block));
            return Err(scene.broken(property, what, Reproduction::Illegal));
        }
        match &placement {
            Placement::Fits(block) => self.costs_least(scene, block)?,
            Placement::Impossible(told) => self.really_impossible(scene, told)?,
            other => unreachable!("a placement fits or is impossible: {other:?}"),
        }
        Ok(placement)
    }

    fn costs_least(&self, scene: PolicyCase<'_>, chosen: &Block) -> Result<(), Box<BrokenProperty>> {
        let better = self
            .cheaper
            .and_then(|cheaper| cheaper(scene.reference, scene.request, chosen));
        let Some(better) = better else { return Ok(()) };
        let what = format!(
            "for {} it chooses {chosen}, but {better} costs less",
            scene.asked()
        );
        let shown_by = Reproduction::Costs(chosen.clone());
        Err(scene.broken(PolicyProperty::CostsLeast, what, shown_by))
    }

    fn really_impossible(&self, scene: PolicyCase<'_>, told: &Impossible) -> Result<(), Box<BrokenProperty>> {
        let truth = scene.reference.why_not(scene.request);
        let declined = matches!(told, Impossible::Declined { .. });
        match truth {
            None if declined && self.may_decline => Ok(()),
            None => {
                let what = format!("{} would fit, but the answer is: {told}", scene.asked());
                Err(scene.broken(PolicyProperty::FindsWhatFits, what, Reproduction::NoFit))
            }
            Some(truth) if truth == *told => Ok(()),
            Some(truth) => {
                let what = format!("the answer is `{told}`, the truth is `{truth}`");
                Err(scene.broken(PolicyProperty::TrueReason, what, Reproduction::Not(truth)))
            }
        }
    }

    fn same_again(
        &self,
        scene: PolicyCase<'_>,
        policy: &dyn PlacementPolicy,
        first: &Placement,
    ) -> Result<(), Box<BrokenProperty>> {
        for _ in 0..REPEATS {
            let again = ask(scene, scene.inventory, policy)?;
            if again != *first {
                let what = format!(
                    "for {} it {}, then it {}",
                    scene.asked(),
                    does(first),
                    does(&again)
                );
                return Err(scene.broken(PolicyProperty::SameAnswerTwice, what, Reproduction::Again));
            }
        }
        Ok(())
    }

    fn same_after_others(
        &self,
        scene: PolicyCase<'_>,
        policy: &dyn PlacementPolicy,
        first: &Placement,
    ) -> Result<(), Box<BrokenProperty>> {
        let broken = |again: &Placement| {
            let what = format!(
                "for {} it {}, after other questions it {}",
                scene.asked(),
                does(first),
                does(again)
            );
            scene.broken(PolicyProperty::ViewAlone, what, Reproduction::Others)
        };
        for (inventory, request) in other_questions(scene) {
            let request = &request;
            let _ = ask(PolicyCase { request, ..scene }, &inventory, policy)?;
        }
        let again = ask(scene, scene.inventory, policy)?;
        if again != *first {
            return Err(broken(&again));
        }
        let other = ask(scene, scene.inventory, &*(self.make)())?;
        if other != *first {
            return Err(broken(&other));
        }
        Ok(())
    }

    fn same_when_rebuilt(
        &self,
        scene: PolicyCase<'_>,
        policy: &dyn PlacementPolicy,
        first: &Placement,
    ) -> Result<(), Box<BrokenProperty>> {
        let mut reference = ReferenceInventory::new(scene.reference.topology());
        let mut rebuilt = Inventory::new(reference.topology());
        for change in backwards(scene.reference) {
            change.apply(&mut reference, &mut rebuilt);
        }
        let again = ask(scene, &rebuilt, policy)?;
        if again == *first {
            return Ok(());
        }
        let what = format!(
            "for {} it {}; with the same holders and exclusions made in another order it {}",
            scene.asked(),
            does(first),
            does(&again)
        );
        Err(scene.broken(PolicyProperty::IgnoresHistory, what, Reproduction::Rebuilt))
    }

    fn fills_up(
        &self,
        scene: PolicyCase<'_>,
        policy: &dyn PlacementPolicy,
    ) -> Result<(), Box<BrokenProperty>> {
        let request = scene.request;
        if request.size > IpuCount::LINK_DOMAIN || self.may_decline {
            return Ok(());
        }
        let expected = scene
            .reference
            .fit_count(request.size, request.allocation.as_ref());
        if expected > FILL_LIMIT {
            return Ok(());
        }
        let (mut reference, mut inventory) = (scene.reference.clone(), scene.inventory.clone());
        let mut history = scene.history.to_vec();
        let mut placed = 0;
        loop {
            let now = PolicyCase {
                reference: &reference,
                inventory: &inventory,
                history: &history,
                request,
            };
            let Placement::Fits(block) = self.answer(now, policy)? else {
                break;
            };
            let change = InventoryChange::occupy(&format!("placed-{placed}"), block);
            change.apply(&mut reference, &mut inventory);
            history.push(change);
            placed += 1;
        }
        if placed == expected {
            return Ok(());
        }
        let what = format!(
            "{expected} partitions of {} fit, and {placed} are placed",
            scene.asked()
        );
        Err(scene.broken(PolicyProperty::FillsUp, what, Reproduction::Count(expected)))
    }
}

/// What `place` answers; a panic is a broken property.
fn ask(
    scene: PolicyCase<'_>,
    inventory: &Inventory,
    policy: &dyn PlacementPolicy,
) -> Result<Placement, Box<BrokenProperty>> {
    quietly(|| place(inventory, scene.request, policy)).map_err(|message| {
        let what = format!("asked for {} it panics: {message}", scene.asked());
        scene.broken(PolicyProperty::NeverPanics, what, Reproduction::Placing)
    })
}

/// The rule that a choice breaks, found one IPU at a time.
fn broken_rule(
    reference: &ReferenceInventory,
    request: &PlacementRequest,
    block: &Block,
) -> Option<PolicyProperty> {
    let ipus: Vec<IpuAddress> = block.addresses().collect();
    let within = |scope: Option<_>| {
        let mut scopes = reference.scopes(scope);
        scopes.any(|(_, scope)| ipus.iter().all(|at| scope.contains(at)))
    };
    let cluster = |at: &IpuAddress| {
        reference
            .topology()
            .home(at.link_domain)
            .map(|(cluster, _)| &cluster.id)
    };
    let first = ipus.first()?;
    if ipus.len() != request.size.get() as usize {
        Some(PolicyProperty::RightSize)
    } else if !ipus.iter().all(|at| reference.topology().contains(*at)) {
        Some(PolicyProperty::Exists)
    } else if !ipus.iter().all(|at| cluster(at) == cluster(first)) {
        Some(PolicyProperty::OneCluster)
    } else if block.size().is_none() {
        Some(PolicyProperty::Aligned)
    } else if ipus.iter().any(|at| reference.holder(*at).is_some()) {
        Some(PolicyProperty::NotHeld)
    } else if ipus.iter().any(|at| reference.is_cordoned(*at)) {
        Some(PolicyProperty::NotCordoned)
    } else if !within(None) {
        Some(PolicyProperty::OneAllocation)
    } else if !within(request.allocation.as_ref()) {
        Some(PolicyProperty::RequestedAllocation)
    } else {
        None
    }
}

/// What is asked in between: the same of an empty inventory, and one IPU and a link domain of this one.
pub(super) fn other_questions(scene: PolicyCase<'_>) -> [(Inventory, PlacementRequest); 3] {
    let empty = Inventory::new(scene.reference.topology());
    let here = |size| {
        (
            scene.inventory.clone(),
            PlacementRequest::of_size(size).in_allocation(scene.request.allocation.clone()),
        )
    };
    [
        (empty, scene.request.clone()),
        here(IpuCount::ONE),
        here(IpuCount::LINK_DOMAIN),
    ]
}

/// The changes that lead to where things are: holders by descending address, then cordons.
pub(super) fn backwards(reference: &ReferenceInventory) -> Vec<InventoryChange> {
    let mut changes = forwards(reference);
    let holders = changes
        .iter()
        .take_while(|change| matches!(change, InventoryChange::Occupy(..)))
        .count();
    changes[..holders].reverse();
    changes
}

/// The changes that lead to where things are: holders by ascending address, then cordons.
pub(super) fn forwards(reference: &ReferenceInventory) -> Vec<InventoryChange> {
    let mut held: Vec<_> = reference.holders().into_iter().collect();
    held.sort_by_key(|(_, ipus)| ipus.first().copied());
    let held = held.into_iter().map(|(holder, ipus)| {
        let block = Block::of_ipus(ipus).expect("a holder holds different IPUs");
        InventoryChange::Occupy(holder, block)
    });
    let mut changes: Vec<InventoryChange> = held.collect();
    for (owner, at) in reference.cordons() {
        match changes.last_mut() {
            Some(InventoryChange::Cordon(last, ipus)) if *last == owner => {
                ipus.insert(at);
            }
            _ => changes.push(InventoryChange::Cordon(owner, [at].into())),
        }
    }
    changes
}

/// A block in a few words.
fn named(block: &Block) -> String {
    if block.size().is_none() && block.ipus() > 8 {
        return format!(
            "{} IPUs in pieces, the first of which is {}",
            block.ipus(),
            block.first()
        );
    }
    block.to_string()
}

fn does(placement: &Placement) -> String {
    match placement {
        Placement::Fits(block) => format!("chooses {}", named(block)),
        Placement::Impossible(Impossible::Illegal { block, .. }) => {
            format!("chooses {}", named(block))
        }
        _ => "chooses nothing".to_owned(),
    }
}

thread_local! {
    static SUPPRESS_PANICS: Cell<bool> = const { Cell::new(false) };
}

/// Runs what may panic, and answers the message then, without a backtrace for each of the many tries of a search.
pub(super) fn quietly<T>(what: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |panic| {
            if !SUPPRESS_PANICS.get() {
                usual(panic);
            }
        }));
    });
    SUPPRESS_PANICS.set(true);
    let result = catch_unwind(AssertUnwindSafe(what));
    SUPPRESS_PANICS.set(false);
    result.map_err(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "no message".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use ipu_core::{FirstFit, Topology};

    use super::*;

    #[test]
    fn a_reason_that_is_not_the_true_one_is_found() {
        // No policy can cause this: `place` finds the reason. So the inventory is not the one of the reference.
        let topology = Topology::pod4();
        let first = Block::within(0, 0, IpuCount::ONE).expect("IPU 0 is a block");
        let mut inventory = Inventory::new(&topology);
        inventory
            .occupy("p".parse().expect("a letter is an id"), first.clone())
            .expect("everything is free");
        let mut reference = ReferenceInventory::new(&topology);
        let owner = "alice".parse().expect("letters are a name");
        reference.cordon(&owner, &first.addresses().collect());
        let judge = PropertyChecker {
            make: &|| Box::new(FirstFit),
            may_decline: false,
            cheaper: None,
        };
        let four = IpuCount::try_from(4).expect("four is a power of two");
        let scene = PolicyCase {
            reference: &reference,
            inventory: &inventory,
            history: &[],
            request: &PlacementRequest::of_size(four),
        };
        let broken = judge.situation(scene).expect_err("held is not excluded");
        assert_eq!(broken.property, PolicyProperty::TrueReason);
        assert!(broken.what.contains("(by alice)"), "{}", broken.what);
    }
}
