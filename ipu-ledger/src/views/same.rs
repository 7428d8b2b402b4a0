//! One controller under two names: its IPUs count once, and the second name gets nothing new.
//!
//! The ids of agents do not tell: each controller may call its own `a1`, `a2`, …. Two names are one controller if the shell knows
//! so, such as by the address, or if both list a partition whose id follows from a job, with the same IPUs.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipu_core::{ControllerName, ControllerView, Listing, Reason, Service};

/// Closes every controller that is an earlier one under a second name; what it is, by its name. `known` is the controller that
/// the shell knows one to be.
pub(super) fn close(
    controllers: &mut [ControllerView],
    known: impl Fn(&ControllerName) -> Option<ControllerName>,
) -> BTreeMap<ControllerName, ControllerName> {
    let mut found = BTreeMap::new();
    // A controller that is drained has holders under its name: the other name gets nothing new until they have left.
    let (draining, open): (Vec<usize>, Vec<usize>) =
        (0..controllers.len()).partition(|index| controllers[*index].service == Service::Draining);
    let order: Vec<usize> = draining.into_iter().chain(open).collect();
    for (at, index) in order.iter().enumerate() {
        let view = &controllers[*index];
        let is_same = |other: &&usize| {
            let other = &controllers[**other];
            known(&view.name).as_ref() == Some(&other.name)
                || known(&other.name).as_ref() == Some(&view.name)
                || list_the_same(&other.listing, &view.listing)
        };
        if let Some(other) = order[..at].iter().find(is_same) {
            let (name, other) = (view.name.clone(), controllers[*other].name.clone());
            controllers[*index].listing = Err(reason(&name, &other));
            found.insert(name, other);
        }
    }
    found
}

/// Whether both list a partition of ours on the same IPUs.
fn list_the_same(one: &Result<Arc<Listing>, Reason>, other: &Result<Arc<Listing>, Reason>) -> bool {
    let (Ok(one), Ok(other)) = (one, other) else {
        return false;
    };
    let mut ours = one
        .partitions()
        .values()
        .filter(|partition| partition.id.is_derived());
    ours.any(|partition| {
        let listed = other.partitions().get(&partition.id);
        listed.is_some_and(|listed| (&listed.spec, &listed.ipus) == (&partition.spec, &partition.ipus))
    })
}

fn reason(name: &ControllerName, other: &ControllerName) -> Reason {
    Reason::new(
        "SameController",
        format!(
            "controller {name} is {other} under a second name: take one of them off the list of controllers"
        ),
    )
}
