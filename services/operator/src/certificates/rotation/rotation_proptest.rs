//! Random simulations of operators that share certificates: a name served by a trusted certificate stays
//! served.

use std::collections::BTreeMap;
use std::convert::Infallible;

use proptest::prelude::*;

use super::*;

const ROTATION: Rotation = Rotation {
    validity: Duration::from_secs(3000),
    renew_before: Duration::from_secs(1500),
    trust_delay: Duration::from_secs(60),
};

/// Maximum time for which an API server uses an old bundle, and maximum time between two checks of an
/// operator.
const MAX_DELAY: u64 = 20;

#[derive(Clone, Debug)]
enum Event {
    /// Time advances.
    Wait(u64),
    /// An operator takes its next step: load and serve, publish the bundle, or write the state.
    Step(usize),
    /// The names in the settings of an operator change.
    Configure(usize, BTreeSet<String>),
    /// The names under which the API server calls change.
    CallNames(BTreeSet<String>),
    /// Another client overwrites the bundle.
    OverwriteBundle,
    /// Another client deletes the Secret.
    DeleteSecret,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let names = || prop::collection::btree_set("[abcd]", 0..3);
    let event = prop_oneof![
        6 => (1..MAX_DELAY).prop_map(Event::Wait),
        20 => (0..2_usize).prop_map(Event::Step),
        1 => (0..2_usize, names()).prop_map(|(index, names)| Event::Configure(index, names)),
        1 => names().prop_map(Event::CallNames),
        1 => Just(Event::OverwriteBundle),
        1 => Just(Event::DeleteSecret),
    ];
    prop::collection::vec(event, 0..600)
}

#[derive(Default)]
struct Operator {
    set: BTreeSet<String>,
    served: Option<CertBundle>,
    /// Time of the last check.
    last_check: u64,
    progress: CheckProgress,
}

/// Progress of a check.
#[derive(Default)]
enum CheckProgress {
    #[default]
    Start,
    Loaded(u64, Option<RotationState>),
    Published(u64, Option<RotationState>, bool),
}

#[derive(Default)]
struct RotationWorld {
    now: u64,
    made: u32,
    /// Number of writes of the Secret, and its content.
    secret: (u64, Option<RotationState>),
    operators: [Operator; 2],
    called_names: BTreeSet<String>,
    /// Time since which each name is called.
    since: BTreeMap<String, u64>,
    /// Bundles that an API server may still use with their start times; the last one is current.
    bundles: Vec<(u64, String)>,
    /// Names that every operator serves.
    served_names: BTreeSet<String>,
}

impl RotationWorld {
    fn apply(&mut self, event: Event) {
        match event {
            Event::Wait(seconds) => {
                for index in 0..2 {
                    while self.now + seconds > self.operators[index].last_check + MAX_DELAY {
                        self.step(index);
                        self.check();
                    }
                }
                self.now += seconds;
            }
            Event::Step(index) => self.step(index),
            Event::Configure(index, names) => self.operators[index].set = names,
            Event::CallNames(names) => {
                let (previous, now) = (std::mem::take(&mut self.since), self.now);
                let since = |name: &String| previous.get(name).copied().unwrap_or(now);
                self.since = names.iter().map(|name| (name.clone(), since(name))).collect();
                self.served_names.retain(|name| names.contains(name));
                self.called_names = names;
            }
            Event::OverwriteBundle => {
                self.put("foreign ca");
                self.served_names.clear();
            }
            // Only while all operators serve the same certificate.
            Event::DeleteSecret => {
                let current = self.secret.1.as_ref().map(|state| &state.current);
                let agreed = |one: &Operator| {
                    matches!(one.progress, CheckProgress::Start) && one.served.as_ref() == current
                };
                if self.operators.iter().all(agreed) {
                    self.secret = (self.secret.0 + 1, None);
                }
            }
        }
        self.check();
    }

    fn put(&mut self, bundle: &str) {
        self.bundles.push((self.now, bundle.to_owned()));
    }

    fn current_bundle(&self) -> &str {
        self.bundles.last().map_or("", |(_, bundle)| bundle)
    }

    /// Takes the next step of operator `index`.
    fn step(&mut self, index: usize) {
        let now = self.now;
        let progress = std::mem::take(&mut self.operators[index].progress);
        self.operators[index].progress = match progress {
            CheckProgress::Start => {
                let (version, state) = self.secret.clone();
                if let Some(state) = &state {
                    self.operators[index].served = Some(state.current.clone());
                }
                self.operators[index].last_check = now;
                CheckProgress::Loaded(version, state)
            }
            CheckProgress::Loaded(version, state) => {
                let bundle = state.as_ref().map(RotationState::bundle);
                let published = bundle.as_deref() == Some(self.current_bundle());
                if let Some(bundle) = bundle.filter(|_| !published) {
                    self.put(&bundle);
                }
                CheckProgress::Published(version, state, published)
            }
            CheckProgress::Published(version, state, trusted) => {
                let operator = &self.operators[index];
                let facts = RotationFacts {
                    now,
                    names: &operator.set.union(&self.called_names).cloned().collect(),
                    called_names: &self.called_names,
                    served: operator.served.as_ref(),
                    trusted,
                    rotation: &ROTATION,
                };
                let made = self.made;
                let create = |names: &BTreeSet<String>| {
                    Ok::<_, Infallible>(CertBundle {
                        ca: format!("ca {made}\n"),
                        certificate: String::new(),
                        key: String::new(),
                        names: names.clone(),
                        not_after: now + ROTATION.validity.as_secs(),
                    })
                };
                let next = next_state(state.as_ref(), &facts, create).unwrap_or_else(|never| match never {});
                if let Some(next) = next.filter(|_| version == self.secret.0) {
                    self.made += 1;
                    self.secret = (version + 1, Some(next));
                }
                CheckProgress::Start
            }
        };
    }

    /// Returns whether every operator serves `name` with a certificate that every API server trusts.
    fn is_served(&self, name: &String) -> bool {
        self.operators.iter().all(|operator| {
            let served = operator.served.as_ref();
            served.is_some_and(|served| {
                let trusts = |(_, bundle): &(u64, String)| bundle.contains(&served.ca);
                self.now < served.not_after && served.names.contains(name) && self.bundles.iter().all(trusts)
            })
        })
    }

    fn check(&mut self) {
        // A bundle is out of use once its successor has existed for long enough.
        while self
            .bundles
            .get(1)
            .is_some_and(|(since, _)| since + MAX_DELAY <= self.now)
        {
            self.bundles.remove(0);
        }
        for name in &self.served_names {
            assert!(self.is_served(name), "{name} is no longer served at {}", self.now);
        }
        // After a name returns, a step taken without it may still be in progress.
        let is_settled = |(_, since): &(&String, &u64)| **since + 3 * MAX_DELAY <= self.now;
        let names = self.since.iter().filter(is_settled).map(|(name, _)| name);
        self.served_names = names.filter(|name| self.is_served(name)).cloned().collect();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_name_served_by_a_trusted_certificate_stays_served(events in events()) {
        let mut world = RotationWorld::default();
        for event in events {
            world.apply(event);
        }
    }

    #[test]
    fn every_name_is_served_eventually_after_any_events(events in events()) {
        let mut world = RotationWorld::default();
        for event in events {
            world.apply(event);
        }
        for _ in 0..60 {
            world.apply(Event::Wait(MAX_DELAY / 2));
            for index in [0, 1, 0, 1, 0, 1] {
                world.apply(Event::Step(index));
            }
        }
        prop_assert!(world.called_names.iter().all(|name| world.is_served(name)));
        for operator in &world.operators {
            let served = operator.served.as_ref().map(|served| &served.names);
            prop_assert!(served.is_some_and(|names| operator.set.is_subset(names)));
        }
    }
}
