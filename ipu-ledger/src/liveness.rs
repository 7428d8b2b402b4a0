//! Who is alive: what the ledger asks the system that its owners live in.

use async_trait::async_trait;
use ipu_core::{Claim, Entry, OwnerLiveness};

/// Tells whether owners are alive. Answer [`Life::Dead`] only if the owner is certainly gone and nothing of it uses the
/// partition; every doubt is [`Life::Unknown`], on which nothing is ever released.
#[async_trait]
pub trait Liveness: Send + Sync {
    /// Whether the owner of `entry` is alive.
    async fn life_of(&self, entry: &Entry) -> OwnerLiveness;

    /// The partitions that live owners were granted, by records of their own (not the ledger's), with the attempt that
    /// uses them now and, if they say so, the controller that has them. With it a lost ledger is rebuilt; by default nothing is claimed, and what is found is quarantined
    /// until its owner asks for it.
    async fn claims(&self) -> Vec<Claim> {
        Vec::new()
    }
}

/// A plain function will do where nothing has to be asked.
#[async_trait]
impl<F: Fn(&Entry) -> OwnerLiveness + Send + Sync> Liveness for F {
    async fn life_of(&self, entry: &Entry) -> OwnerLiveness {
        self(entry)
    }
}
