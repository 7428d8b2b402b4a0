//! Checks of placement policies against properties.

use std::any::type_name;
use std::cell::RefCell;
use std::fmt;

use ipu_core::hardware::Block;
use ipu_core::placement::{PlacementPolicy, PlacementRequest};
use proptest::strategy::{BoxedStrategy, Strategy};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::random::number;
use crate::reference_inventory::ReferenceInventory;
use crate::strategies::{PlacementCase, placement_cases};

mod checks;
mod history;
mod property;
mod report;

pub use property::PolicyProperty;
pub use report::PolicyReport;

use checks::{Cheaper, PolicyCase, PropertyChecker, catch_panic};
use history::{InventoryHistory, histories, replay};
use property::BrokenProperty;
use report::kinds_of_allocations;

/// Default number of placement cases: every class is reached several times.
const CASES: u32 = 256;

/// Number of placement cases per inventory history.
const CASES_PER_HISTORY: u32 = 8;

/// Limit on attempts to shrink a failing case: about a second.
const MAX_SHRINKS: u32 = 4_000;

/// Checks all properties of the placement policy `P` and returns the coverage.
///
/// The check calls the policy through [`place`](ipu_core::placement::place) in a few hundred random cases and
/// inventory histories. It compares every result with brute force ([`ReferenceInventory`]). See
/// [`PolicyProperty`] for the properties. The cases are the same in every run; `IPU_POLICY_CASES` sets their
/// number,
/// `IPU_POLICY_SEED` their seed.
///
/// ```
/// use core::cmp::Reverse;
///
/// use ipu_core::hardware::{Block, InventoryView};
/// use ipu_core::placement::{PlacementPolicy, PlacementRequest};
/// use ipu_testkit::check_policy;
///
/// #[derive(Default)]
/// struct Spread;
///
/// impl PlacementPolicy for Spread {
///     fn name(&self) -> &str {
///         "spread"
///     }
///
///     fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
///         view.blocks(request.size).min_by_key(|block| Reverse(view.free_in(block.first().link_domain)))
///     }
/// }
///
/// # fn main() {
/// println!("{}", check_policy::<Spread>());
/// # }
/// ```
///
/// # Panics
///
/// If a property is violated: with the property and the smallest case found. See [`PolicyFailure`].
#[track_caller]
pub fn check_policy<P: PlacementPolicy + Default>() -> PolicyReport {
    PolicyCheck::new().check(P::default)
}

/// Like [`check_policy`], for a policy with parameters: every call of `make` must return the same policy.
///
/// # Panics
///
/// If a property is violated, see [`check_policy`].
#[track_caller]
pub fn check_policy_with<P: PlacementPolicy>(make: impl Fn() -> P) -> PolicyReport {
    PolicyCheck::new().check(make)
}

/// Check of a policy with options.
///
/// ```
/// use ipu_core::placement::FirstFit;
/// use ipu_testkit::PolicyCheck;
///
/// // The chosen block is the first of all legal blocks.
/// PolicyCheck::new().minimises(|_, _, block| block.clone()).check(|| FirstFit);
/// ```
#[must_use]
pub struct PolicyCheck {
    cases: u32,
    seed: u64,
    may_decline: bool,
    cheaper: Option<Box<Cheaper>>,
    placement_cases: BoxedStrategy<PlacementCase>,
    histories: BoxedStrategy<InventoryHistory>,
}

impl Default for PolicyCheck {
    fn default() -> Self {
        Self::new()
    }
}

impl PolicyCheck {
    /// Creates the check of [`check_policy`].
    ///
    /// # Panics
    ///
    /// If `IPU_POLICY_CASES` or `IPU_POLICY_SEED` is set and not a number.
    pub fn new() -> Self {
        let cases = number("IPU_POLICY_CASES").unwrap_or(CASES.into());
        Self {
            cases: u32::try_from(cases).unwrap_or(u32::MAX),
            seed: number("IPU_POLICY_SEED").unwrap_or(0),
            may_decline: false,
            cheaper: None,
            placement_cases: placement_cases().boxed(),
            histories: histories().boxed(),
        }
    }

    /// Sets the number of placement cases; an eighth as many inventory histories run. Fewer than about 200 do
    /// not reach every class, and the check fails.
    pub fn cases(mut self, cases: u32) -> Self {
        self.cases = cases;
        self
    }

    /// Sets the seed; 0 by default.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Allows the policy to decline requests that fit: disables
    /// [`FindsWhatFits`](PolicyProperty::FindsWhatFits) and [`FillsUp`](PolicyProperty::FillsUp).
    pub fn allow_declining(mut self) -> Self {
        self.may_decline = true;
        self
    }

    /// Requires that no legal block costs less than the chosen one. `cost` receives the inventory, the
    /// request and one legal free block, for all such blocks. To define a unique choice among equals, make
    /// the cost unique, such as `(cost, block.clone())`.
    pub fn minimises<C: Ord>(
        mut self,
        cost: impl Fn(&ReferenceInventory, &PlacementRequest, &Block) -> C + 'static,
    ) -> Self {
        self.cheaper = Some(Box::new(move |reference, request, chosen| {
            let blocks = reference.free_blocks(request.size, request.allocation.as_ref());
            let mut costs = blocks
                .into_iter()
                .map(|block| (cost(reference, request, &block), block));
            let mut best = costs.next()?;
            for next in costs {
                if next.0 < best.0 {
                    best = next;
                }
            }
            (best.0 < cost(reference, request, chosen)).then_some(best.1)
        }));
        self
    }

    /// Checks the policy that `make` returns.
    ///
    /// # Panics
    ///
    /// With the text of a [`PolicyFailure`] if a property is violated.
    #[track_caller]
    pub fn check<P: PlacementPolicy>(&self, make: impl Fn() -> P) -> PolicyReport {
        match self.run(make) {
            Ok(report) => report,
            Err(failure) => panic!("{failure}"),
        }
    }

    /// Like [`check`](Self::check), but returns the failure.
    ///
    /// # Errors
    ///
    /// The first violated property.
    pub fn run<P: PlacementPolicy>(&self, make: impl Fn() -> P) -> Result<PolicyReport, PolicyFailure> {
        let boxed = || -> Box<dyn PlacementPolicy + '_> { Box::new(make()) };
        let checker = PropertyChecker {
            make: &boxed,
            may_decline: self.may_decline,
            cheaper: self.cheaper.as_deref(),
        };
        let name = catch_panic(|| make().name().to_owned())
            .unwrap_or_else(|_| short_name(type_name::<P>()).to_owned());
        let histories = self.cases.div_ceil(CASES_PER_HISTORY);
        let report = RefCell::new(PolicyReport::new(name, self.cases, histories, self.seed));
        let count = |kinds: &_, reference: &_, request: &_, placement: &_| {
            report.borrow_mut().count(reference, kinds, request, placement);
        };
        let in_cases = self.search(self.cases, &self.placement_cases, |case| {
            let placement = checker.check_case(PolicyCase {
                reference: &case.reference,
                inventory: &case.inventory,
                history: &case.history,
                request: &case.request,
            })?;
            let kinds = kinds_of_allocations(&case.reference);
            count(&kinds, &case.reference, &case.request, &placement);
            Ok(())
        });
        let broken = in_cases.and_then(|()| {
            self.search(histories, &self.histories, |history| {
                let kinds = kinds_of_allocations(&ReferenceInventory::new(&history.topology));
                replay(&checker, history, |reference, request, placement| {
                    count(&kinds, reference, request, placement);
                })
            })
        });
        let report = report.into_inner();
        match broken {
            Ok(()) => self.check_coverage(report),
            Err(broken) => Err(self.failure(report.policy, *broken)),
        }
    }

    /// Runs `cases` cases, and shrinks the first failure.
    fn search<V: fmt::Debug>(
        &self,
        cases: u32,
        strategy: &BoxedStrategy<V>,
        checker: impl Fn(&V) -> Result<(), Box<BrokenProperty>>,
    ) -> Result<(), Box<BrokenProperty>> {
        let config = Config {
            cases,
            failure_persistence: None,
            max_shrink_iters: MAX_SHRINKS,
            ..Config::default()
        };
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let smallest: RefCell<Option<Box<BrokenProperty>>> = RefCell::new(None);
        let outcome = TestRunner::new_with_rng(config, rng).run(strategy, |case| {
            let Err(broken) = checker(&case) else {
                return Ok(());
            };
            let mut smallest = smallest.borrow_mut();
            if smallest
                .as_ref()
                .is_some_and(|first| first.property != broken.property)
            {
                // A different failure, found while shrinking, is ignored.
                return Ok(());
            }
            let reason = broken.property.to_string();
            *smallest = Some(broken);
            Err(TestCaseError::fail(reason))
        });
        match (outcome, smallest.into_inner()) {
            (Ok(()), _) => Ok(()),
            (Err(_), Some(broken)) => Err(broken),
            (Err(TestError::Fail(reason, case)), None) => {
                panic!("the inventory and its reference differ, a bug of ipu-core: {reason}\n{case:#?}")
            }
            (Err(error), None) => panic!("cannot generate a case: {error}"),
        }
    }

    fn check_coverage(&self, report: PolicyReport) -> Result<PolicyReport, PolicyFailure> {
        let unreached = report.unreached();
        if unreached.is_empty() {
            return Ok(report);
        }
        Err(PolicyFailure {
            detail: format!("no placement was of class {}", unreached.join("; ")),
            policy: report.policy,
            property: PolicyProperty::WellCovered,
            seed: self.seed,
            cases: self.cases,
            case: None,
        })
    }

    fn failure(&self, policy: String, broken: BrokenProperty) -> PolicyFailure {
        PolicyFailure {
            policy,
            property: broken.property,
            detail: broken.detail,
            case: Some(broken.case),
            seed: self.seed,
            cases: self.cases,
        }
    }
}

/// Violated property of a policy. Displays as a report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct PolicyFailure {
    /// Name of the policy.
    pub policy: String,
    /// Violated property.
    pub property: PolicyProperty,
    /// Details, in one sentence.
    pub detail: String,
    /// Seed of the cases.
    pub seed: u64,
    /// Number of placement cases.
    pub cases: u32,
    /// Smallest case found, a line each for the topology, the changes that led to its inventory, and the
    /// request; none if coverage was insufficient.
    pub case: Option<String>,
}

impl fmt::Display for PolicyFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "the policy {} violates a property: {}",
            self.policy, self.property
        )?;
        writeln!(f, "  {}", self.detail)?;
        writeln!(
            f,
            "  to repeat these cases: IPU_POLICY_SEED={} IPU_POLICY_CASES={}",
            self.seed, self.cases
        )?;
        match &self.case {
            Some(case) => writeln!(f, "  the smallest case:\n    {}", case.replace('\n', "\n    ")),
            None => writeln!(f, "  to run more cases, set IPU_POLICY_CASES"),
        }
    }
}

/// Returns the name of a type without its modules, also for generic types.
fn short_name(name: &str) -> &str {
    let path = name.split('<').next().unwrap_or(name);
    let start = path.rfind("::").map_or(0, |at| at + 2);
    &name[start..]
}

#[cfg(test)]
mod tests {
    use ipu_core::hardware::Topology;
    use ipu_core::placement::FirstFit;
    use proptest::strategy::Just;

    use super::*;

    #[test]
    fn a_check_with_an_unreached_class_fails() {
        let mut check = PolicyCheck::new();
        check.placement_cases = placement_cases()
            .prop_map(|mut case| {
                case.request.allocation = None;
                case
            })
            .boxed();
        check.histories = Just(InventoryHistory {
            topology: Topology::pod4(),
            moves: Vec::new(),
        })
        .boxed();
        let Err(failure) = check.run(|| FirstFit) else {
            panic!("no case requested one allocation")
        };
        assert_eq!(failure.property, PolicyProperty::WellCovered);
        assert!(
            failure
                .detail
                .contains("requested allocation: one; requested allocation: an unknown one"),
            "{failure}"
        );
    }

    #[test]
    fn a_short_name_has_no_module_path() {
        for (name, short) in [
            ("it::policy::Spread", "Spread"),
            ("Spread", "Spread"),
            ("a::Weighted<b::Best>", "Weighted<b::Best>"),
        ] {
            assert_eq!(short_name(name), short);
        }
    }
}
