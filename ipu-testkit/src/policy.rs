//! Placement properties, held against any policy.

use std::any::type_name;
use std::cell::RefCell;
use std::fmt;

use ipu_core::{Block, PlacementPolicy, PlacementRequest};
use proptest::strategy::{BoxedStrategy, Strategy};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::reference_inventory::ReferenceInventory;
use crate::strategies::{PlacementCase, situations};

mod checks;
mod history;
mod property;
mod report;
mod repro_test;
mod shrink;

pub use property::PolicyProperty;
pub use report::PolicyReport;

use checks::{Cheaper, PolicyCase, PropertyChecker, quietly};
use history::{Life, live, lives};
use property::BrokenProperty;
use report::kinds_of_allocations;
use repro_test::reproduction;
use shrink::smallest;

/// Situations that are tried if nobody says otherwise: every class is reached several times.
const CASES: u32 = 256;

/// So many situations for one long life.
const SITUATIONS_PER_LIFE: u32 = 8;

/// How many simpler random choices are tried once a case fails, before it is taken apart piece by piece.
const SHRINK_LIMIT: u32 = 200;

/// Checks that everything that must hold of a placement policy holds of `P`, and answers what was covered.
///
/// The policy is asked through [`place`](ipu_core::place) in a few hundred random situations and long lives of
/// inventories, and every answer is held against brute force ([`ReferenceInventory`]). See [`PolicyProperty`] for what is
/// checked. The cases are the same in every run; `IPU_POLICY_CASES` asks for more of them, `IPU_POLICY_SEED` for others.
///
/// ```
/// use core::cmp::Reverse;
///
/// use ipu_core::{Block, PlacementPolicy, PlacementRequest, View};
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
///     fn choose(&self, view: &View<'_>, request: &PlacementRequest) -> Option<Block> {
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
/// If a property does not hold: with the property, the smallest case that was found, and a test to paste that reproduces
/// it. See [`PolicyFailure`].
#[track_caller]
pub fn check_policy<P: PlacementPolicy + Default>() -> PolicyReport {
    let code = format!("{}::default()", short_name(type_name::<P>()));
    PolicyCheck::new().with_constructor(code).check(P::default)
}

/// Like [`check_policy`], of a policy that has parameters: `make` makes the same one whenever it is called.
///
/// # Panics
///
/// If a property does not hold, see [`check_policy`].
#[track_caller]
pub fn check_policy_with<P: PlacementPolicy>(make: impl Fn() -> P) -> PolicyReport {
    PolicyCheck::new().check(make)
}

/// A check of a policy with options.
///
/// ```
/// use ipu_core::FirstFit;
/// use ipu_testkit::PolicyCheck;
///
/// // What it chooses comes first of all legal blocks.
/// PolicyCheck::new().minimises(|_, _, block| block.clone()).check(|| FirstFit);
/// ```
#[must_use]
pub struct PolicyCheck {
    cases: u32,
    seed: u64,
    may_decline: bool,
    cheaper: Option<Box<Cheaper>>,
    code: Option<String>,
    situations: BoxedStrategy<PlacementCase>,
    lives: BoxedStrategy<Life>,
}

impl Default for PolicyCheck {
    fn default() -> Self {
        Self::new()
    }
}

impl PolicyCheck {
    /// The check that [`check_policy`] does.
    ///
    /// # Panics
    ///
    /// If `IPU_POLICY_CASES` or `IPU_POLICY_SEED` is set and no number.
    pub fn new() -> Self {
        let cases = number("IPU_POLICY_CASES").unwrap_or(CASES.into());
        Self {
            cases: u32::try_from(cases).unwrap_or(u32::MAX),
            seed: number("IPU_POLICY_SEED").unwrap_or(0),
            may_decline: false,
            cheaper: None,
            code: None,
            situations: situations().boxed(),
            lives: lives().boxed(),
        }
    }

    /// So many situations, and an eighth as many long lives. Fewer than some 200 do not reach every class, and the check
    /// fails.
    pub fn cases(mut self, cases: u32) -> Self {
        self.cases = cases;
        self
    }

    /// Other cases than those of seed 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The policy may decline what fits: neither [`FindsWhatFits`](PolicyProperty::FindsWhatFits) nor
    /// [`FillsUp`](PolicyProperty::FillsUp) is asked of it.
    pub fn allow_declining(mut self) -> Self {
        self.may_decline = true;
        self
    }

    /// Nothing that the policy could choose costs less than what it chooses. `cost` gets where things are, what is asked
    /// for, and one legal free block; it is asked about all of them. Let the cost tell blocks apart
    /// (`(cost, block.clone())`) to say which of several equals is to be chosen.
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

    /// The Rust expression that makes the policy, for the test that reproduces a failure.
    pub fn with_constructor(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// Checks the policy that `make` makes.
    ///
    /// # Panics
    ///
    /// With a [`PolicyFailure`] as text if a property does not hold.
    #[track_caller]
    pub fn check<P: PlacementPolicy>(&self, make: impl Fn() -> P) -> PolicyReport {
        match self.run(make) {
            Ok(report) => report,
            Err(failure) => panic!("{failure}"),
        }
    }

    /// Like [`check`](Self::check), with the failure as a value.
    ///
    /// # Errors
    ///
    /// The first property that does not hold.
    pub fn run<P: PlacementPolicy>(&self, make: impl Fn() -> P) -> Result<PolicyReport, PolicyFailure> {
        let boxed = || -> Box<dyn PlacementPolicy + '_> { Box::new(make()) };
        let judge = PropertyChecker {
            make: &boxed,
            may_decline: self.may_decline,
            cheaper: self.cheaper.as_deref(),
        };
        let name =
            quietly(|| make().name().to_owned()).unwrap_or_else(|_| short_name(type_name::<P>()).to_owned());
        let lives = self.cases.div_ceil(SITUATIONS_PER_LIFE);
        let report = RefCell::new(PolicyReport::new(name, self.cases, lives, self.seed));
        let count = |kinds: &_, reference: &_, request: &_, placement: &_| {
            report.borrow_mut().count(reference, kinds, request, placement);
        };
        let in_situations = self.search(self.cases, &self.situations, |situation| {
            let placement = judge.situation(PolicyCase {
                reference: &situation.reference,
                inventory: &situation.inventory,
                history: &situation.history,
                request: &situation.request,
            })?;
            let kinds = kinds_of_allocations(&situation.reference);
            count(&kinds, &situation.reference, &situation.request, &placement);
            Ok(())
        });
        let broken = in_situations.and_then(|()| {
            self.search(lives, &self.lives, |life| {
                let kinds = kinds_of_allocations(&ReferenceInventory::new(&life.topology));
                live(&judge, life, |reference, request, placement| {
                    count(&kinds, reference, request, placement);
                })
            })
        });
        let report = report.into_inner();
        match broken {
            Ok(()) => self.covered(report),
            Err(broken) => Err(self.failure(&judge, report.policy, *broken)),
        }
    }

    /// Judges `cases` cases, and smaller ones once one fails.
    fn search<V: fmt::Debug>(
        &self,
        cases: u32,
        strategy: &BoxedStrategy<V>,
        judge: impl Fn(&V) -> Result<(), Box<BrokenProperty>>,
    ) -> Result<(), Box<BrokenProperty>> {
        let config = Config {
            cases,
            failure_persistence: None,
            max_shrink_iters: SHRINK_LIMIT,
            ..Config::default()
        };
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let smallest: RefCell<Option<Box<BrokenProperty>>> = RefCell::new(None);
        let outcome = TestRunner::new_with_rng(config, rng).run(strategy, |case| {
            let Err(broken) = judge(&case) else { return Ok(()) };
            let mut smallest = smallest.borrow_mut();
            if smallest
                .as_ref()
                .is_some_and(|known| known.property != broken.property)
            {
                // Another failure, found on the way: one at a time.
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
                panic!("the inventory and its reference disagree, a bug of ipu-core: {reason}\n{case:#?}")
            }
            (Err(error), None) => panic!("no case could be made: {error}"),
        }
    }

    fn covered(&self, report: PolicyReport) -> Result<PolicyReport, PolicyFailure> {
        let unreached = report.unreached();
        if unreached.is_empty() {
            return Ok(report);
        }
        Err(PolicyFailure {
            what: format!("nothing was placed with {}", unreached.join("; ")),
            policy: report.policy,
            property: PolicyProperty::WellCovered,
            seed: self.seed,
            cases: self.cases,
            reproduction: None,
        })
    }

    fn failure(&self, judge: &PropertyChecker<'_>, policy: String, broken: BrokenProperty) -> PolicyFailure {
        let broken = smallest(judge, broken);
        let code = self
            .code
            .as_deref()
            .unwrap_or("make() /* as you gave it to the check */");
        PolicyFailure {
            policy,
            property: broken.property,
            reproduction: Some(reproduction(&broken, code)),
            what: broken.what,
            seed: self.seed,
            cases: self.cases,
        }
    }
}

/// A property that does not hold of a policy. Displays as a report with a test to paste.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct PolicyFailure {
    /// The name of the policy.
    pub policy: String,
    /// What does not hold.
    pub property: PolicyProperty,
    /// What happened, in one sentence.
    pub what: String,
    /// The seed of the cases.
    pub seed: u64,
    /// How many situations there were to be.
    pub cases: u32,
    /// A test of `ipu-core` alone that fails as long as the property does not hold; none if too little was covered.
    pub reproduction: Option<String>,
}

impl fmt::Display for PolicyFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "the policy {} is broken; this does not hold: {}",
            self.policy, self.property
        )?;
        writeln!(f, "  {}", self.what)?;
        writeln!(
            f,
            "  the same cases again: IPU_POLICY_SEED={} IPU_POLICY_CASES={}",
            self.seed, self.cases
        )?;
        match &self.reproduction {
            Some(code) => write!(f, "  this test fails until it does:\n\n{code}"),
            None => writeln!(f, "  more cases reach more: set IPU_POLICY_CASES"),
        }
    }
}

/// The name of a type without the modules that it is in; of a generic one, too.
fn short_name(name: &str) -> &str {
    let path = name.split('<').next().unwrap_or(name);
    let start = path.rfind("::").map_or(0, |at| at + 2);
    &name[start..]
}

/// A number of the environment.
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    match text.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{variable}={text}: give a whole number"),
    }
}

#[cfg(test)]
mod tests {
    use ipu_core::{FirstFit, Topology};
    use proptest::strategy::Just;

    use super::*;

    #[test]
    fn cases_that_never_reach_a_class_are_a_failure() {
        let mut check = PolicyCheck::new();
        check.situations = situations()
            .prop_map(|mut situation| {
                situation.request.allocation = None;
                situation
            })
            .boxed();
        check.lives = Just(Life {
            topology: Topology::pod4(),
            moves: Vec::new(),
        })
        .boxed();
        let Err(failure) = check.run(|| FirstFit) else {
            panic!("nothing asked for one allocation")
        };
        assert_eq!(failure.property, PolicyProperty::WellCovered);
        assert!(
            failure
                .what
                .contains("allocation asked for: one; allocation asked for: an unknown one"),
            "{failure}"
        );
    }

    #[test]
    fn a_type_is_called_by_its_last_name() {
        for (name, short) in [
            ("it::policy::Spread", "Spread"),
            ("Spread", "Spread"),
            ("a::Weighted<b::Best>", "Weighted<b::Best>"),
        ] {
            assert_eq!(short_name(name), short);
        }
    }
}
