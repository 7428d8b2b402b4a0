//! The suite of stores: a conforming store passes, and each defect is detected.

use std::sync::Arc;

use async_trait::async_trait;
use ipu_allocator::{MemoryStore, Record, Revision, Store, StoreError, UsagePosition};
use ipu_core::Timestamp;
use ipu_core::allocator::{Change, UsageRecord};
use ipu_testkit::{SuiteFailure, store_suite, try_store_suite};
use tokio::sync::Mutex;

#[derive(Clone, Copy, PartialEq)]
enum Defect {
    None,
    OpenKeepsRevision,
    IgnoresBasis,
    ReversesChanges,
    ForgetsCordons,
    ForgetsHolders,
    RevisionIsContent,
    RecordsUsageOfConflicts,
    PagesRepeatTheLast,
    Panics,
}

struct Flawed {
    inner: MemoryStore,
    defect: Defect,
    /// The revision of the last open, and the real one.
    kept: Mutex<Option<(Revision, Revision)>>,
}

impl Flawed {
    /// Returns the revision that `inner` knows by the reported `basis`.
    async fn real(&self, basis: &Revision) -> Result<Revision, StoreError> {
        match &*self.kept.lock().await {
            Some((reported, real)) if reported == basis => Ok(real.clone()),
            _ if self.defect == Defect::IgnoresBasis => Ok(self.inner.open().await?.revision),
            _ => Ok(basis.clone()),
        }
    }
}

#[async_trait]
impl Store for Flawed {
    async fn open(&self) -> Result<Record, StoreError> {
        assert!(self.defect != Defect::Panics, "the store panics");
        let mut record = self.inner.open().await?;
        let mut kept = self.kept.lock().await;
        let reported = match self.defect {
            Defect::OpenKeepsRevision => kept.as_ref().map(|(reported, _)| reported.clone()),
            Defect::RevisionIsContent => Some(Revision::new(format!("{:?}", record.state))),
            _ => None,
        };
        let reported = reported.unwrap_or_else(|| record.revision.clone());
        *kept = Some((reported.clone(), record.revision));
        record.revision = reported;
        Ok(record)
    }

    async fn commit(
        &self,
        basis: &Revision,
        changes: &[Change],
        usage: &[UsageRecord],
    ) -> Result<Revision, StoreError> {
        let mut changes = changes.to_vec();
        match self.defect {
            Defect::ReversesChanges => changes.reverse(),
            Defect::ForgetsCordons => changes.retain(|change| !matches!(change, Change::Cordon(_))),
            Defect::ForgetsHolders => {
                for change in &mut changes {
                    if let Change::Put(entry) = change {
                        Arc::make_mut(entry).holder.clear();
                    }
                }
            }
            _ => {}
        }
        let result = self.inner.commit(&self.real(basis).await?, &changes, usage).await;
        if result.is_err() && self.defect == Defect::RecordsUsageOfConflicts {
            let real = self.inner.open().await?.revision;
            self.inner.commit(&real, &[], usage).await?;
        }
        result
    }

    async fn usage(
        &self,
        since: Timestamp,
        after: Option<&UsagePosition>,
        limit: usize,
    ) -> Result<Vec<UsageRecord>, StoreError> {
        let mut page = self.inner.usage(since, after, limit).await?;
        if self.defect == Defect::PagesRepeatTheLast && after.is_some() {
            page.pop();
        }
        Ok(page)
    }
}

async fn failure_of(defect: Defect) -> Result<(), SuiteFailure> {
    let report = try_store_suite(|| {
        let store: Arc<dyn Store> = Arc::new(Flawed {
            inner: MemoryStore::default(),
            defect,
            kept: Mutex::default(),
        });
        move || Arc::clone(&store)
    });
    report.await.map(|_| ())
}

#[tokio::test]
async fn every_case_runs_on_the_memory_store() {
    let report = store_suite(|| {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        move || Arc::clone(&store)
    })
    .await;
    assert_eq!((report.ran.len(), report.skipped.len()), (7, 0), "{report}");
}

#[tokio::test]
async fn every_defect_is_detected_by_its_case() {
    failure_of(Defect::None).await.unwrap();
    for (defect, case) in [
        (
            Defect::OpenKeepsRevision,
            "every_open_and_every_commit_has_a_new_revision",
        ),
        (
            Defect::RevisionIsContent,
            "every_open_and_every_commit_has_a_new_revision",
        ),
        (
            Defect::IgnoresBasis,
            "a_commit_on_another_revision_conflicts_and_writes_nothing",
        ),
        (Defect::IgnoresBasis, "a_predecessor_cannot_write"),
        (Defect::ReversesChanges, "changes_apply_in_their_order"),
        (Defect::ForgetsCordons, "every_field_survives"),
        (Defect::ForgetsHolders, "every_field_survives"),
        (
            Defect::RecordsUsageOfConflicts,
            "a_commit_on_another_revision_conflicts_and_writes_nothing",
        ),
        (Defect::PagesRepeatTheLast, "usage_is_paged_in_one_order"),
        (Defect::Panics, "every_field_survives"),
    ] {
        let Err(failure) = failure_of(defect).await else {
            panic!("not detected by {case}");
        };
        assert!(failure.is_broken(case), "not detected by {case}: {failure}");
    }
}
