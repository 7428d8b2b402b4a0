//! Random lives of operators that share certificates: a name that is answered by a trusted certificate goes on being so.

use std::collections::BTreeMap;
use std::convert::Infallible;

use proptest::prelude::*;

use super::*;

const ROTATION: Rotation = Rotation {
    validity: Duration::from_secs(3000),
    before: Duration::from_secs(1500),
    settle: Duration::from_secs(60),
};

/// How long an API server goes on with the bundle before, at most, and how long an operator may rest.
const LATE: u64 = 20;

#[derive(Clone, Debug)]
enum Event {
    /// Time passes.
    Wait(u64),
    /// An operator does what it does next: load and serve, tell, or move.
    Go(usize),
    /// An operator is set to other names.
    Set(usize, BTreeSet<String>),
    /// The API server is told to ask under other names.
    Ask(BTreeSet<String>),
    /// Somebody puts another bundle there.
    Spoil,
    /// Somebody takes the Secret away.
    Lose,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let names = || prop::collection::btree_set("[abcd]", 0..3);
    let event = prop_oneof![
        6 => (1..LATE).prop_map(Event::Wait),
        20 => (0..2_usize).prop_map(Event::Go),
        1 => (0..2_usize, names()).prop_map(|(who, names)| Event::Set(who, names)),
        1 => names().prop_map(Event::Ask),
        1 => Just(Event::Spoil),
        1 => Just(Event::Lose),
    ];
    prop::collection::vec(event, 0..600)
}

#[derive(Default)]
struct Operator {
    set: BTreeSet<String>,
    served: Option<CertBundle>,
    /// When it looked last.
    looked: u64,
    look: CheckProgress,
}

/// How far a look is.
#[derive(Default)]
enum CheckProgress {
    #[default]
    Begin,
    Loaded(u64, Option<RotationState>),
    Told(u64, Option<RotationState>, bool),
}

#[derive(Default)]
struct RotationWorld {
    now: u64,
    made: u32,
    /// The Secret, and how often it was written.
    secret: (u64, Option<RotationState>),
    operators: [Operator; 2],
    asked: BTreeSet<String>,
    /// Since when under each.
    since: BTreeMap<String, u64>,
    /// The bundles that an API server may go by, the last of them the one that is there, and since when each.
    bundles: Vec<(u64, String)>,
    /// The names that are answered whoever is asked.
    working: BTreeSet<String>,
}

impl RotationWorld {
    fn happen(&mut self, event: Event) {
        match event {
            Event::Wait(seconds) => {
                for who in 0..2 {
                    while self.now + seconds > self.operators[who].looked + LATE {
                        self.go(who);
                        self.check();
                    }
                }
                self.now += seconds;
            }
            Event::Go(who) => self.go(who),
            Event::Set(who, names) => self.operators[who].set = names,
            Event::Ask(names) => {
                let (before, now) = (std::mem::take(&mut self.since), self.now);
                let since = |name: &String| before.get(name).copied().unwrap_or(now);
                self.since = names.iter().map(|name| (name.clone(), since(name))).collect();
                self.working.retain(|name| names.contains(name));
                self.asked = names;
            }
            Event::Spoil => {
                self.put("ca of nobody");
                self.working.clear();
            }
            // Not while operators do not agree.
            Event::Lose => {
                let current = self.secret.1.as_ref().map(|state| &state.current);
                let agreed = |one: &Operator| {
                    matches!(one.look, CheckProgress::Begin) && one.served.as_ref() == current
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

    fn there(&self) -> &str {
        self.bundles.last().map_or("", |(_, bundle)| bundle)
    }

    /// The next of what operator `who` does.
    fn go(&mut self, who: usize) {
        let now = self.now;
        let look = std::mem::take(&mut self.operators[who].look);
        self.operators[who].look = match look {
            CheckProgress::Begin => {
                let (version, state) = self.secret.clone();
                if let Some(state) = &state {
                    self.operators[who].served = Some(state.current.clone());
                }
                self.operators[who].looked = now;
                CheckProgress::Loaded(version, state)
            }
            CheckProgress::Loaded(version, state) => {
                let bundle = state.as_ref().map(RotationState::bundle);
                let told = bundle.as_deref() == Some(self.there());
                if let Some(bundle) = bundle.filter(|_| !told) {
                    self.put(&bundle);
                }
                CheckProgress::Told(version, state, told)
            }
            CheckProgress::Told(version, state, trusted) => {
                let operator = &self.operators[who];
                let facts = RotationFacts {
                    now,
                    names: &operator.set.union(&self.asked).cloned().collect(),
                    asked: &self.asked,
                    served: operator.served.as_ref(),
                    trusted,
                    rotation: &ROTATION,
                };
                let made = self.made;
                let make = |names: &BTreeSet<String>| {
                    Ok::<_, Infallible>(CertBundle {
                        ca: format!("ca {made}\n"),
                        certificate: String::new(),
                        key: String::new(),
                        names: names.clone(),
                        not_after: now + ROTATION.validity.as_secs(),
                    })
                };
                let next = next_state(state.as_ref(), &facts, make).unwrap_or_else(|never| match never {});
                if let Some(next) = next.filter(|_| version == self.secret.0) {
                    self.made += 1;
                    self.secret = (version + 1, Some(next));
                }
                CheckProgress::Begin
            }
        };
    }

    /// Whether every API server gets an answer that it trusts from every operator, under `name`.
    fn is_answered(&self, name: &String) -> bool {
        self.operators.iter().all(|operator| {
            let served = operator.served.as_ref();
            served.is_some_and(|served| {
                let trusts = |(_, bundle): &(u64, String)| bundle.contains(&served.ca);
                self.now < served.not_after && served.names.contains(name) && self.bundles.iter().all(trusts)
            })
        })
    }

    fn check(&mut self) {
        // One is gone by when the next one has been there for long enough.
        while self
            .bundles
            .get(1)
            .is_some_and(|(since, _)| since + LATE <= self.now)
        {
            self.bundles.remove(0);
        }
        for name in &self.working {
            assert!(
                self.is_answered(name),
                "{name} is not answered any more at {}",
                self.now
            );
        }
        // Under a name that comes back, what was done in haste without it may still be under way.
        let long = |(_, since): &(&String, &u64)| **since + 3 * LATE <= self.now;
        let names = self.since.iter().filter(long).map(|(name, _)| name);
        self.working = names.filter(|name| self.is_answered(name)).cloned().collect();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_name_that_is_answered_by_a_trusted_certificate_goes_on_being_answered(events in events()) {
        let mut world = RotationWorld::default();
        for event in events {
            world.happen(event);
        }
    }

    #[test]
    fn in_the_end_every_name_is_answered_whatever_was_done(events in events()) {
        let mut world = RotationWorld::default();
        for event in events {
            world.happen(event);
        }
        for _ in 0..60 {
            world.happen(Event::Wait(LATE / 2));
            for who in [0, 1, 0, 1, 0, 1] {
                world.happen(Event::Go(who));
            }
        }
        prop_assert!(world.asked.iter().all(|name| world.is_answered(name)));
        for operator in &world.operators {
            let served = operator.served.as_ref().map(|served| &served.names);
            prop_assert!(served.is_some_and(|names| operator.set.is_subset(names)));
        }
    }
}
