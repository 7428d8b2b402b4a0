//! What the operators agree on, and its moves: pure.
//!
//! A generation is used for serving only when its authority has been in every caBundle for a while; its predecessor's authority
//! stays there, for operators that have not heard of it yet.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::made::Generation;

/// The form of the state that is written; a newer one is left alone.
const FORMAT: u32 = 1;

/// The longest that nobody looks at the state.
const LOOK: Duration = Duration::from_secs(3600);

/// When certificates are renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rotation {
    /// How long a certificate is valid: 90 days unless set.
    pub validity: Duration,
    /// How long before its end a new one is made: 30 days unless set.
    pub before: Duration,
    /// How long the authority of a new one is trusted before it is used: a minute unless set, in which every API server hears of
    /// it.
    pub settle: Duration,
}

impl Default for Rotation {
    fn default() -> Self {
        const DAY: u64 = 24 * 3600;
        Self {
            validity: Duration::from_secs(90 * DAY),
            before: Duration::from_secs(30 * DAY),
            settle: Duration::from_secs(60),
        }
    }
}

/// What is in the Secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct State {
    format: u32,
    pub(super) current: Generation,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<Next>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous_ca: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Next {
    generation: Generation,
    /// Since when its authority is known to be in every caBundle, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trusted_since: Option<u64>,
}

/// What a move is decided by.
pub(super) struct Facts<'a> {
    /// Seconds since 1970.
    pub(super) now: u64,
    /// The names that the certificate has to be for.
    pub(super) names: &'a BTreeSet<String>,
    /// Whether the [bundle](State::bundle) of the state is everywhere.
    pub(super) trusted: bool,
    pub(super) rotation: &'a Rotation,
}

/// Why a state cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum StateError {
    #[error("the certificates were written by a newer operator (format {format}); they are left alone")]
    Newer { format: u32 },
    #[error("the certificates cannot be read: {0}")]
    Broken(#[from] serde_json::Error),
}

#[derive(Deserialize)]
struct Formatted {
    format: u32,
}

impl State {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, StateError> {
        let Formatted { format } = serde_json::from_slice(bytes)?;
        if format > FORMAT {
            return Err(StateError::Newer { format });
        }
        Ok(serde_json::from_slice(bytes)?)
    }

    fn beginning(current: Generation, previous_ca: Option<String>) -> Self {
        Self {
            format: FORMAT,
            current,
            next: None,
            previous_ca,
        }
    }

    /// Every authority that a request may meet, in PEM.
    pub(super) fn bundle(&self) -> String {
        let next = self.next.as_ref().map(|next| next.generation.ca.as_str());
        let previous = self.previous_ca.as_deref();
        let mut bundle = self.current.ca.clone();
        for ca in next.into_iter().chain(previous) {
            if !bundle.ends_with('\n') {
                bundle.push('\n');
            }
            bundle.push_str(ca);
        }
        bundle
    }

    /// After how long the state has to be looked at again if nothing happens.
    pub(super) fn pause(&self, now: u64, rotation: &Rotation) -> Duration {
        let at = match &self.next {
            Some(Next {
                trusted_since: Some(since),
                ..
            }) => since + rotation.settle.as_secs(),
            Some(_) => now + rotation.settle.as_secs(),
            None => self.renewal(rotation),
        };
        Duration::from_secs(at.saturating_sub(now)).clamp(Duration::from_secs(1), LOOK)
    }

    fn renewal(&self, rotation: &Rotation) -> u64 {
        self.current.not_after.saturating_sub(rotation.before.as_secs())
    }
}

/// The state to write next, if another one than `state`; `make` makes certificates for the names that it is given.
pub(super) fn step<E>(
    state: Option<&State>,
    facts: &Facts<'_>,
    make: impl FnOnce(&BTreeSet<String>) -> Result<Generation, E>,
) -> Result<Option<State>, E> {
    let Some(state) = state else {
        return Ok(Some(State::beginning(make(facts.names)?, None)));
    };
    let (now, current) = (facts.now, &state.current);
    if now >= current.not_after {
        // Nothing works any more, so that there is nothing to be careful of.
        let previous = Some(current.ca.clone());
        return Ok(Some(State::beginning(make(facts.names)?, previous)));
    }
    if !facts.names.is_subset(&current.names) {
        // Operators of other settings may run beside this one for a while, and must be content too.
        let names = facts.names.union(&current.names).cloned().collect();
        let previous = Some(current.ca.clone());
        return Ok(Some(State::beginning(make(&names)?, previous)));
    }
    let mut changed = state.clone();
    match &mut changed.next {
        None if now < state.renewal(facts.rotation) => return Ok(None),
        None => {
            changed.next = Some(Next {
                generation: make(facts.names)?,
                trusted_since: None,
            });
        }
        Some(_) if !facts.trusted => return Ok(None),
        Some(Next { trusted_since, .. }) if trusted_since.is_none() => *trusted_since = Some(now),
        Some(Next {
            trusted_since,
            generation,
        }) => {
            let since = trusted_since.unwrap_or(now);
            if now < since + facts.rotation.settle.as_secs() {
                return Ok(None);
            }
            changed = State::beginning(generation.clone(), Some(current.ca.clone()));
        }
    }
    Ok(Some(changed))
}

#[cfg(test)]
mod tests;
