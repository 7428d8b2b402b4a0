//! Checks a placement policy and prints the coverage: `cargo run -p ipu-testkit --example prove_a_policy`.

use std::cmp::Reverse;

use ipu_core::hardware::{Block, InventoryView};
use ipu_core::placement::{PlacementPolicy, PlacementRequest};
use ipu_testkit::check_policy;

/// Chooses a block in the link domain with the most free IPUs, the lowest of the lowest such link domain.
#[derive(Default)]
struct Spread;

impl PlacementPolicy for Spread {
    fn name(&self) -> &'static str {
        "spread"
    }

    fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
        // Every candidate is legal and free, in ascending order; `max_by_key` would return the last of
        // several equals.
        view.blocks(request.size)
            .min_by_key(|block| Reverse(view.free_in(block.first().link_domain)))
    }
}

#[expect(clippy::print_stdout, reason = "an example shows what it does")]
fn main() {
    let report = check_policy::<Spread>();
    println!("{report}");
}
