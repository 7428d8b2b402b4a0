//! Checks of a policy's decision.

use std::cell::Cell;
use std::cmp::Reverse;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use ipu_core::IpuCount;
use ipu_core::hardware::{Block, Inventory, IpuAddress};
use ipu_core::placement::{Impossible, Placement, PlacementPolicy, PlacementRequest, place};

use super::property::{BrokenProperty, PolicyProperty};
use crate::reference_inventory::ReferenceInventory;
use crate::strategies::InventoryChange;

/// Returns a legal block that costs less than the given one, if there is one.
pub(super) type Cheaper = dyn Fn(&ReferenceInventory, &PlacementRequest, &Block) -> Option<Block>;

/// Number of repetitions of a request.
const REPEATS: usize = 4;

/// Limit on placements until nothing fits: enough to fill a link domain with partitions of one IPU.
const FILL_LIMIT: u32 = 64;

/// Checks of the decisions of a policy.
pub(super) struct PropertyChecker<'a> {
    pub(super) make: &'a dyn Fn() -> Box<dyn PlacementPolicy + 'a>,
    pub(super) may_decline: bool,
    pub(super) cheaper: Option<&'a Cheaper>,
}

/// Inventory, request and history of a decision.
#[derive(Clone, Copy)]
pub(super) struct PolicyCase<'a> {
    pub(super) reference: &'a ReferenceInventory,
    pub(super) inventory: &'a Inventory,
    pub(super) history: &'a [InventoryChange],
    pub(super) request: &'a PlacementRequest,
}

impl PolicyCase<'_> {
    fn broken(&self, property: PolicyProperty, detail: String) -> Box<BrokenProperty> {
        let mut case = format!("topology {}", self.reference.topology());
        for change in self.history {
            case.push_str(&format!("\n{change}"));
        }
        case.push_str(&format!("\nplace {}", self.requested()));
        Box::new(BrokenProperty {
            property,
            detail,
            case,
        })
    }

    fn requested(&self) -> String {
        let size = self.request.size;
        let ipus = if size == IpuCount::ONE { "IPU" } else { "IPUs" };
        match &self.request.allocation {
            Some(allocation) => format!("{size} {ipus} of allocation {allocation}"),
            None => format!("{size} {ipus}"),
        }
    }
}

impl PropertyChecker<'_> {
    /// Runs all checks for one case and returns the placement.
    pub(super) fn check_case(&self, case: PolicyCase<'_>) -> Result<Placement, Box<BrokenProperty>> {
        let policy = (self.make)();
        let placement = self.check_decision(case, &*policy)?;
        self.check_repeatable(case, &*policy, &placement)?;
        self.check_stateless(case, &*policy, &placement)?;
        self.check_history_independent(case, &*policy, &placement)?;
        self.check_fills_up(case, &*policy)?;
        Ok(placement)
    }

    /// Checks one decision.
    pub(super) fn check_decision(
        &self,
        case: PolicyCase<'_>,
        policy: &dyn PlacementPolicy,
    ) -> Result<Placement, Box<BrokenProperty>> {
        let placement = place_checked(case, case.inventory, policy)?;
        let chosen = match &placement {
            Ok(block) | Err(Impossible::Illegal { block, .. }) => Some(block),
            _ => None,
        };
        if let Some((block, property)) =
            chosen.and_then(|block| Some((block, broken_rule(case.reference, case.request, block)?)))
        {
            let detail = format!(
                "for {} the policy chooses {}",
                case.requested(),
                block_text(block)
            );
            return Err(case.broken(property, detail));
        }
        match &placement {
            Ok(block) => self.check_cost(case, block)?,
            Err(reported) => self.check_reason(case, reported)?,
        }
        Ok(placement)
    }

    fn check_cost(&self, case: PolicyCase<'_>, chosen: &Block) -> Result<(), Box<BrokenProperty>> {
        let better = self
            .cheaper
            .and_then(|cheaper| cheaper(case.reference, case.request, chosen));
        let Some(better) = better else { return Ok(()) };
        let detail = format!(
            "for {} the policy chooses {chosen}, but {better} costs less",
            case.requested()
        );
        Err(case.broken(PolicyProperty::CostsLeast, detail))
    }

    fn check_reason(&self, case: PolicyCase<'_>, reported: &Impossible) -> Result<(), Box<BrokenProperty>> {
        let expected = case.reference.impossibility(case.request);
        let declined = matches!(reported, Impossible::Declined { .. });
        match expected {
            None if declined && self.may_decline => Ok(()),
            None => {
                let detail = format!("{} would fit, but the result is: {reported}", case.requested());
                Err(case.broken(PolicyProperty::FindsWhatFits, detail))
            }
            Some(expected) if expected == *reported => Ok(()),
            Some(expected) => {
                let detail = format!("the result is `{reported}`, the expected reason is `{expected}`");
                Err(case.broken(PolicyProperty::TrueReason, detail))
            }
        }
    }

    fn check_repeatable(
        &self,
        case: PolicyCase<'_>,
        policy: &dyn PlacementPolicy,
        first: &Placement,
    ) -> Result<(), Box<BrokenProperty>> {
        for _ in 0..REPEATS {
            let again = place_checked(case, case.inventory, policy)?;
            if again != *first {
                let detail = format!(
                    "for {} the policy {}, then it {}",
                    case.requested(),
                    decision_text(first),
                    decision_text(&again)
                );
                return Err(case.broken(PolicyProperty::SameAnswerTwice, detail));
            }
        }
        Ok(())
    }

    fn check_stateless(
        &self,
        case: PolicyCase<'_>,
        policy: &dyn PlacementPolicy,
        first: &Placement,
    ) -> Result<(), Box<BrokenProperty>> {
        let broken = |again: &Placement| {
            let detail = format!(
                "for {} the policy {}, after other requests it {}",
                case.requested(),
                decision_text(first),
                decision_text(again)
            );
            case.broken(PolicyProperty::ViewAlone, detail)
        };
        for (inventory, request) in other_requests(case) {
            let request = &request;
            let _ = place_checked(PolicyCase { request, ..case }, &inventory, policy)?;
        }
        let again = place_checked(case, case.inventory, policy)?;
        if again != *first {
            return Err(broken(&again));
        }
        let other = place_checked(case, case.inventory, &*(self.make)())?;
        if other != *first {
            return Err(broken(&other));
        }
        Ok(())
    }

    fn check_history_independent(
        &self,
        case: PolicyCase<'_>,
        policy: &dyn PlacementPolicy,
        first: &Placement,
    ) -> Result<(), Box<BrokenProperty>> {
        let mut reference = ReferenceInventory::new(case.reference.topology());
        let mut rebuilt = Inventory::new(reference.topology());
        for change in changes_descending(case.reference) {
            change.apply(&mut reference, &mut rebuilt);
        }
        let again = place_checked(case, &rebuilt, policy)?;
        if again == *first {
            return Ok(());
        }
        let detail = format!(
            "for {} the policy {}; with the same holders and cordons in another order it {}",
            case.requested(),
            decision_text(first),
            decision_text(&again)
        );
        Err(case.broken(PolicyProperty::IgnoresHistory, detail))
    }

    fn check_fills_up(
        &self,
        case: PolicyCase<'_>,
        policy: &dyn PlacementPolicy,
    ) -> Result<(), Box<BrokenProperty>> {
        let request = case.request;
        if request.size > IpuCount::LINK_DOMAIN || self.may_decline {
            return Ok(());
        }
        let expected = case
            .reference
            .fit_count(request.size, request.allocation.as_ref());
        if expected > FILL_LIMIT {
            return Ok(());
        }
        let (mut reference, mut inventory) = (case.reference.clone(), case.inventory.clone());
        let mut history = case.history.to_vec();
        let mut placed = 0;
        loop {
            let now = PolicyCase {
                reference: &reference,
                inventory: &inventory,
                history: &history,
                request,
            };
            let Ok(block) = self.check_decision(now, policy)? else {
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
        let detail = format!(
            "{expected} partitions of {} fit, but {placed} are placed",
            case.requested()
        );
        Err(case.broken(PolicyProperty::FillsUp, detail))
    }
}

/// Returns the result of `place`; a panic violates a property.
fn place_checked(
    case: PolicyCase<'_>,
    inventory: &Inventory,
    policy: &dyn PlacementPolicy,
) -> Result<Placement, Box<BrokenProperty>> {
    catch_panic(|| place(inventory, case.request, policy)).map_err(|message| {
        let detail = format!("for {} the policy panics: {message}", case.requested());
        case.broken(PolicyProperty::NeverPanics, detail)
    })
}

/// Returns the property that a chosen block violates, by brute force.
fn broken_rule(
    reference: &ReferenceInventory,
    request: &PlacementRequest,
    block: &Block,
) -> Option<PolicyProperty> {
    let ipus: Vec<IpuAddress> = block.addresses().collect();
    let within = |scope: Option<_>| {
        let mut scopes = reference.scopes(scope);
        scopes.any(|(_, scope)| ipus.iter().all(|address| scope.contains(address)))
    };
    let cluster = |address: &IpuAddress| {
        reference
            .topology()
            .cluster_of(address.link_domain)
            .map(|(cluster, _)| &cluster.id)
    };
    let first = ipus.first()?;
    if ipus.len() != request.size.get() as usize {
        Some(PolicyProperty::RightSize)
    } else if !ipus.iter().all(|address| reference.topology().contains(*address)) {
        Some(PolicyProperty::Exists)
    } else if !ipus.iter().all(|address| cluster(address) == cluster(first)) {
        Some(PolicyProperty::OneCluster)
    } else if block.size().is_none() {
        Some(PolicyProperty::Aligned)
    } else if ipus.iter().any(|address| reference.holder(*address).is_some()) {
        Some(PolicyProperty::NotHeld)
    } else if ipus.iter().any(|address| reference.is_cordoned(*address)) {
        Some(PolicyProperty::NotCordoned)
    } else if !within(None) {
        Some(PolicyProperty::OneAllocation)
    } else if !within(request.allocation.as_ref()) {
        Some(PolicyProperty::RequestedAllocation)
    } else {
        None
    }
}

/// Requests in between: the same with an empty inventory, and one IPU and a link domain with this one.
fn other_requests(case: PolicyCase<'_>) -> [(Inventory, PlacementRequest); 3] {
    let empty = Inventory::new(case.reference.topology());
    let in_this = |size| {
        (
            case.inventory.clone(),
            PlacementRequest::of_size(size).in_allocation(case.request.allocation.clone()),
        )
    };
    [
        (empty, case.request.clone()),
        in_this(IpuCount::ONE),
        in_this(IpuCount::LINK_DOMAIN),
    ]
}

/// Returns changes that produce the inventory: holders by descending address, then cordons.
fn changes_descending(reference: &ReferenceInventory) -> Vec<InventoryChange> {
    let mut held: Vec<_> = reference.holders().into_iter().collect();
    held.sort_by_key(|(_, ipus)| Reverse(ipus.first().copied()));
    let held = held.into_iter().map(|(holder, ipus)| {
        let block = Block::from_ipus(ipus).expect("the IPUs of a holder are distinct");
        InventoryChange::Occupy(holder, block)
    });
    let cordons = reference.cordons().into_iter();
    held.chain(cordons.map(|(owner, address)| InventoryChange::Cordon(owner, [address].into())))
        .collect()
}

/// Returns a short description of a block.
fn block_text(block: &Block) -> String {
    if block.size().is_none() && block.ipus() > 8 {
        return format!(
            "{} IPUs in pieces, the first of which is {}",
            block.ipus(),
            block.first()
        );
    }
    block.to_string()
}

fn decision_text(placement: &Placement) -> String {
    match placement {
        Ok(block) => format!("chooses {}", block_text(block)),
        Err(Impossible::Illegal { block, .. }) => {
            format!("chooses {}", block_text(block))
        }
        _ => "chooses nothing".to_owned(),
    }
}

thread_local! {
    static SUPPRESS_PANICS: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function that may panic and returns the panic message; suppresses backtraces during the search.
pub(super) fn catch_panic<T>(detail: impl FnOnce() -> T) -> Result<T, String> {
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
    let result = catch_unwind(AssertUnwindSafe(detail));
    SUPPRESS_PANICS.set(false);
    result.map_err(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "no message".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use ipu_core::hardware::Topology;
    use ipu_core::placement::FirstFit;

    use super::*;

    #[test]
    fn a_wrong_reason_is_detected() {
        // No policy can cause this, because `place` computes the reason: the test passes an inventory that
        // differs from the reference.
        let topology = Topology::pod4();
        let first = Block::within(0, 0, IpuCount::ONE).expect("IPU 0 is a block");
        let mut inventory = Inventory::new(&topology);
        inventory
            .occupy("p".parse().expect("a valid partition id"), first.clone())
            .expect("all IPUs are free");
        let mut reference = ReferenceInventory::new(&topology);
        let owner = "alice".parse().expect("a valid owner name");
        reference.cordon(&owner, &first.addresses().collect());
        let checker = PropertyChecker {
            make: &|| Box::new(FirstFit),
            may_decline: false,
            cheaper: None,
        };
        let four = IpuCount::try_from(4).expect("four is a power of two");
        let case = PolicyCase {
            reference: &reference,
            inventory: &inventory,
            history: &[],
            request: &PlacementRequest::of_size(four),
        };
        let broken = checker.check_case(case).expect_err("held IPUs are not cordoned");
        assert_eq!(broken.property, PolicyProperty::TrueReason);
        assert!(broken.detail.contains("(by alice)"), "{}", broken.detail);
    }
}
