//! Ledgers of the proptest strategy.

use std::cell::RefCell;
use std::collections::BTreeSet;

use ipu_core::check_inventory;
use ipu_testkit::strategies::ledgers;
use proptest::test_runner::{Config, TestRunner};

#[test]
fn the_strategy_reaches_every_entry_state_and_active_partitions_exist_once() {
    let states = RefCell::new(BTreeSet::new());
    let config = Config {
        cases: 256,
        failure_persistence: None,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    runner
        .run(&ledgers(), |case| {
            for entry in case.state.entries() {
                states.borrow_mut().insert(entry.state.label());
                let having = case.controllers.iter();
                let having = having.filter(|controller| controller.inventory.block_of(&entry.id).is_some());
                assert!(having.count() <= 1, "{entry:?}");
            }
            for controller in &case.controllers {
                assert_eq!(check_inventory(&controller.inventory), []);
            }
            let judged = case.state.evaluate_queue(&case.world(), &case.rules, case.now);
            assert_eq!(judged.len(), case.state.queue().len());
            Ok(())
        })
        .unwrap();
    let all = [
        "active",
        "failed",
        "intent",
        "orphaned",
        "quarantined",
        "releasing",
        "waiting",
    ];
    assert_eq!(states.into_inner(), BTreeSet::from(all));
}
