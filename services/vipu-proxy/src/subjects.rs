//! Changes of queue, cordons and controllers, for the clients of the event stream.

use std::sync::Arc;
use std::time::Duration;

use ipu_allocator::View;
use ipu_core::allocator::{ControllerMap, QuotaUsage, ServiceState};
use ipu_core::{ControllerName, Reason};
use ipu_proxy_client::Subject;

use crate::app::App;

/// Pause between two comparisons: several times within the second in which a person sees a change, and a
/// small part of a processor at 65,536 IPUs.
const COMPARE_INTERVAL: Duration = Duration::from_millis(250);

/// Number of changes of each subject so far, in the order of [`Subject::ALL`].
pub(crate) type Versions = [u64; Subject::ALL.len()];

/// State of the subjects at one moment.
struct Observed {
    view: Arc<View>,
    map: Vec<ControllerMap>,
    quotas: Vec<QuotaUsage>,
    services: Vec<(ControllerName, ServiceState, Option<Reason>)>,
}

impl Observed {
    fn of(view: Arc<View>) -> Self {
        let controllers = view.hardware().controllers.iter();
        let services =
            controllers.map(|one| (one.name.clone(), one.service, one.listing.as_ref().err().cloned()));
        Self {
            map: view.map(),
            quotas: view.quota_usage(),
            services: services.collect(),
            view,
        }
    }

    fn equals(&self, other: &Self, subject: Subject) -> bool {
        match subject {
            Subject::Queue => self.view.queue() == other.view.queue(),
            Subject::Cordons => self.view.state().cordons().eq(other.view.state().cordons()),
            Subject::Controllers => {
                self.map == other.map && self.quotas == other.quotas && self.services == other.services
            }
        }
    }
}

/// Compares the subjects after each change of the published state, while there are event streams, until the
/// proxy stops.
pub(crate) async fn watch(app: Arc<App>) {
    let mut stopping = app.stopping();
    tokio::select! {
        _ = stopping.wait_for(|stop| *stop) => {}
        () = compare(&app) => {}
    }
}

async fn compare(app: &App) {
    let mut published = app.allocator.published();
    let mut last: Option<Observed> = None;
    while published.changed().await.is_ok() {
        // Without a stream, nothing is compared, and the next stream starts with all subjects.
        let view = if app.subjects.receiver_count() == 0 {
            None
        } else {
            app.allocator.view().await.ok()
        };
        let Some(view) = view else {
            last = None;
            continue;
        };
        let next = Observed::of(view);
        app.subjects.send_if_modified(|versions: &mut Versions| {
            let mut is_modified = false;
            for (version, subject) in versions.iter_mut().zip(Subject::ALL) {
                if last.as_ref().is_none_or(|last| !last.equals(&next, subject)) {
                    *version += 1;
                    is_modified = true;
                }
            }
            is_modified
        });
        last = Some(next);
        tokio::time::sleep(COMPARE_INTERVAL).await;
    }
}

/// Returns the subjects that differ.
pub(crate) fn changed(from: &Versions, to: &Versions) -> Vec<Subject> {
    let pairs = from.iter().zip(to).zip(Subject::ALL);
    pairs
        .filter_map(|((from, to), subject)| (from != to).then_some(subject))
        .collect()
}
