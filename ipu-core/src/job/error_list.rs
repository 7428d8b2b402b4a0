//! All errors of an input.

use alloc::vec::{self, Vec};
use core::error::Error;
use core::fmt;
use core::ops::Deref;

/// The errors of an input, of which every one is reported. Dereferences to a slice, and displays each error
/// on a line of its own, in debug format too: a `main` that fails prints that.
///
/// ```
/// use ipu_core::job::{ErrorList, Violation};
///
/// let absent = Violation::new("spec.ipus", None, "a job has IPUs", "add it");
/// let odd = Violation::new("spec.gcds", Some("3"), "must be even", "use 2 or 4");
/// let errors = ErrorList::from(vec![absent, odd]);
/// let text = "spec.ipus is absent: a job has IPUs; add it\nspec.gcds = 3: must be even; use 2 or 4";
/// assert_eq!(errors.to_string(), text);
/// assert_eq!(format!("{errors:?}"), text);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ErrorList<E>(Vec<E>);

impl<E> From<Vec<E>> for ErrorList<E> {
    fn from(errors: Vec<E>) -> Self {
        Self(errors)
    }
}

impl<E> IntoIterator for ErrorList<E> {
    type IntoIter = vec::IntoIter<E>;
    type Item = E;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<E> Deref for ErrorList<E> {
    type Target = [E];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<E: fmt::Display> fmt::Display for ErrorList<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl<E: fmt::Display> fmt::Debug for ErrorList<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<E: Error> Error for ErrorList<E> {}
