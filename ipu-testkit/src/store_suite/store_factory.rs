//! Where the ledger of one case is kept.

use std::any::Any;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

/// The place of one ledger. A store that is opened here for the first time is empty; whenever it is opened again it is the
/// same ledger. Gone, with all files in it, when the case is over.
#[derive(Debug)]
pub struct StoreFactory {
    directory: TempDir,
    name: String,
    shared: Mutex<Option<Box<dyn Any + Send>>>,
}

impl StoreFactory {
    pub(crate) fn new() -> Self {
        static HOMES: AtomicU64 = AtomicU64::new(0);
        let number = HOMES.fetch_add(1, Ordering::Relaxed);
        Self {
            directory: tempfile::tempdir()
                .unwrap_or_else(|error| panic!("the suite needs a directory for scratch files: {error}")),
            name: format!("suite-{}-{number}", std::process::id()),
            shared: Mutex::new(None),
        }
    }

    /// An empty directory of this home's own, for stores in files.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A name that no other home of this machine has now, for stores that keep ledgers under names: lower case letters,
    /// digits and `-`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A value of this home's own: made by `make` when it is asked for first, and a clone of that from then on. For stores
    /// whose clones share one ledger, or for a server that holds it.
    ///
    /// # Panics
    ///
    /// If it is asked for with two types.
    pub fn shared<T: Clone + Send + 'static>(&self, make: impl FnOnce() -> T) -> T {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let value = shared.get_or_insert_with(|| Box::new(make()));
        let Some(value) = value.downcast_ref::<T>() else {
            panic!(
                "the shared value of a home has one type; it is not {}",
                std::any::type_name::<T>()
            );
        };
        value.clone()
    }
}
