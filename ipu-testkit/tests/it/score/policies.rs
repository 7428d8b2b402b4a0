//! Policies that are bad, each in its own way, and strategies of traces.

use std::cmp::Reverse;
use std::time::Duration;

use ipu_core::{
    BestFit, Block, FirstFit, InventoryView, IpuCount, PlacementPolicy, PlacementRequest, Topology,
};
use ipu_testkit::{Trace, TraceJob};
use proptest::prelude::*;

/// Puts everything where most IPUs are free.
#[derive(Debug, Default)]
pub(crate) struct Spread;

impl PlacementPolicy for Spread {
    fn name(&self) -> &str {
        "spread"
    }

    fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
        view.blocks(request.size)
            .min_by_key(|block| Reverse(view.free_in(block.first().link_domain)))
    }
}

/// Best fit that declines while an odd number of IPUs, or of pairs of IPUs, is free.
#[derive(Debug, Default)]
pub(crate) struct Moody;

impl PlacementPolicy for Moody {
    fn name(&self) -> &str {
        "moody"
    }

    fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
        let odd = request.size.get() > 1 && view.free() & 3 != 0;
        if odd { None } else { BestFit.choose(view, request) }
    }
}

/// Uses the lower half of the hardware only: a job at a time of each size, in effect.
#[derive(Debug, Default)]
pub(crate) struct Wasteful;

impl PlacementPolicy for Wasteful {
    fn name(&self) -> &str {
        "wasteful"
    }

    fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
        let half_is_held = view.free() * 2 < view.ipus() + 2 * request.size.get();
        if half_is_held && view.free() < view.ipus() {
            return None;
        }
        FirstFit.choose(view, request)
    }
}

/// Never places more than four IPUs.
#[derive(Debug, Default)]
pub(crate) struct SmallOnly;

impl PlacementPolicy for SmallOnly {
    fn name(&self) -> &str {
        "small-only"
    }

    fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
        (request.size.get() <= 4).then(|| BestFit.choose(view, request))?
    }
}

/// Always answers the first block of the first link domain, free or not.
#[derive(Debug, Default)]
pub(crate) struct Stubborn;

impl PlacementPolicy for Stubborn {
    fn name(&self) -> &str {
        "stubborn"
    }

    fn choose(&self, _: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
        Block::within(0, 0, request.size).ok()
    }
}

pub(crate) fn policies() -> Vec<Box<dyn PlacementPolicy>> {
    vec![
        Box::new(BestFit),
        Box::new(FirstFit),
        Box::new(Spread),
        Box::new(Moody),
        Box::new(Wasteful),
        Box::new(SmallOnly),
        Box::new(Stubborn),
    ]
}

pub(crate) fn count(ipus: u32) -> IpuCount {
    IpuCount::try_from(ipus).unwrap()
}

/// A job of whole seconds.
pub(crate) fn job(submit: u64, runtime: u64, ipus: u32) -> TraceJob {
    TraceJob::new(
        Duration::from_secs(submit),
        Duration::from_secs(runtime),
        count(ipus),
    )
}

/// Up to `most` jobs that come close together, so that they wait: many at the same moment, some of no length, of up to
/// 2^`orders` IPUs.
pub(crate) fn trace(most: usize, orders: u32) -> impl Strategy<Value = Trace> {
    let job = (
        0_u64..4,
        0_u64..20,
        0..=orders,
        prop_oneof![4 => Just(0), 1 => -1..=1],
    );
    prop::collection::vec(job, 0..most).prop_map(|jobs| {
        let mut now = 0;
        Trace::of_jobs((1..).zip(jobs).map(|(number, (gap, runtime, order, priority))| {
            now += gap;
            job_of_order(now, runtime, order)
                .numbered(number)
                .with_priority(priority)
        }))
    })
}

fn job_of_order(submit: u64, runtime: u64, order: u32) -> TraceJob {
    job(submit, runtime, 1 << order)
}

/// Small hardware that does not hold every job.
pub(crate) fn topology() -> impl Strategy<Value = Topology> {
    prop_oneof![
        Just("pod4"),
        Just("1x2"),
        Just("2x1,1x2"),
        Just("pod16"),
        Just("1x3;1x1"),
    ]
    .prop_map(|text| text.parse().unwrap())
}
