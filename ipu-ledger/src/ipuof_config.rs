//! The IPUoF configuration of an active partition, from its controller.

use std::sync::Arc;

use ipu_core::{Entry, EntryState, IpuofConfig};
use ipu_vipu_client::{VipuController, VipuError};

use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::store::LedgerStore;

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Ledger<C, S> {
    /// Returns the IPUoF configuration of the partition of `expected`: of one GCD, or of all in their order.
    /// Each has the attribute `GCD Id`.
    ///
    /// # Errors
    ///
    /// [`LedgerError::NotActive`] if the partition is not active, or not the one of `expected` any more when
    /// the controller replies. [`LedgerError::ControllerCall`] if the controller returns no configuration.
    /// [`LedgerError::UnknownController`], and errors of the store.
    pub async fn ipuof_config(&self, expected: &Entry, gcd: Option<u32>) -> Result<IpuofConfig, LedgerError> {
        let id = &expected.id;
        if expected.state != EntryState::Active {
            return Err(not_active(expected, expected.state.label()));
        }
        let at = self.driver.controller_of(expected)?;
        let call = at.controller.ipuof_config(id, gcd);
        let deadline = self.driver.options.call_deadline;
        let reply = self.driver.listings.call(&at.name, deadline, call).await;
        // The partition may have been released or reset during the call: its devices then belong to others.
        let current = self.get(id).await?;
        let is_same = |entry: &Entry| {
            (entry.ticket, entry.attempt, &entry.controller)
                == (expected.ticket, expected.attempt, &expected.controller)
        };
        match &current {
            Some(entry) if entry.state == EntryState::Active && is_same(entry) => {}
            Some(entry) => return Err(not_active(expected, entry.state.label())),
            None => return Err(not_active(expected, "gone")),
        }
        let checked = reply.and_then(|config| with_gcd_ids(config, expected.spec.gcds, gcd));
        checked.map_err(|source| match source {
            VipuError::NotFound { .. } => not_active(expected, "lost by its controller"),
            source => LedgerError::ControllerCall {
                id: id.clone(),
                controller: at.name.clone(),
                operation: "return the IPUoF configuration",
                source: Arc::new(source),
            },
        })
    }
}

fn not_active(entry: &Entry, state: &'static str) -> LedgerError {
    LedgerError::NotActive {
        id: entry.id.clone(),
        state,
    }
}

/// Sets the attribute `GCD Id` of each GCD, if the reply has exactly the requested ones.
fn with_gcd_ids(mut config: IpuofConfig, gcds: u32, gcd: Option<u32>) -> Result<IpuofConfig, VipuError> {
    let numbers = gcd.map_or(0..gcds, |gcd| gcd..gcd + 1);
    if config.gcds.len() != numbers.len() {
        let (found, requested) = (config.gcds.len(), numbers.len());
        return Err(VipuError::BadReply {
            detail: format!("the IPUoF configuration has {found} GCDs, requested {requested}"),
        });
    }
    let numbered = config.gcds.into_iter().zip(numbers);
    config.gcds = numbered.map(|(config, number)| config.for_gcd(number)).collect();
    Ok(config)
}
