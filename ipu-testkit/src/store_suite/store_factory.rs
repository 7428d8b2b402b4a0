//! Location of the ledger of one case.

use std::any::Any;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

/// Location of one ledger. A store that is opened here for the first time is empty; reopening it gives the
/// same ledger. The directory and its files are deleted when the case ends.
#[derive(Debug)]
pub struct StoreFactory {
    directory: TempDir,
    name: String,
    shared: Mutex<Option<Box<dyn Any + Send>>>,
}

impl StoreFactory {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            directory: tempfile::tempdir()
                .unwrap_or_else(|error| panic!("the suite needs a directory for temporary files: {error}")),
            name: format!("suite-{}-{number}", std::process::id()),
            shared: Mutex::new(None),
        }
    }

    /// Returns an empty directory of this factory, for stores in files.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns a name that no other factory on this machine uses now, for stores that keep ledgers by name:
    /// lower case letters, digits and `-`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a shared value of this factory: `make` creates it on the first call; later calls return
    /// clones. For stores whose clones share one ledger, or for a server that holds it.
    ///
    /// # Panics
    ///
    /// If it is called with two types.
    pub fn shared<T: Clone + Send + 'static>(&self, make: impl FnOnce() -> T) -> T {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let value = shared.get_or_insert_with(|| Box::new(make()));
        let Some(value) = value.downcast_ref::<T>() else {
            panic!(
                "the shared value of a store factory has one type, not {}",
                std::any::type_name::<T>()
            );
        };
        value.clone()
    }
}
