//! Events as the API server stores them: repetitions count in the series of the first Event, and each job has
//! a limit.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipu_core::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use serde_json::{Value, json};

use super::ports::{JobEvent, Severity};
use crate::crd::IpuJob;
use crate::resources::FIELD_MANAGER;

/// Time since the last repetition in which a repeated event counts in its series, as the documentation of
/// Events defines it.
const SERIES_WINDOW: Duration = Duration::from_secs(6 * 60);
/// Maximum number of Events created per job in that window. More would flood readers, and the status contains
/// everything.
const MAX_EVENTS_PER_JOB: usize = 25;
/// Maximum length of a note in the API, in bytes.
const MAX_NOTE_BYTES: usize = 1024;
/// Maximum length of the reporting instance in the API, in bytes.
const MAX_INSTANCE_BYTES: usize = 128;

/// Request to the API server that publishes an event.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum EventWrite {
    Create(Box<Event>),
    /// A merge patch of the Event of this name.
    Count(String, Value),
    /// No request: the job has reached its limit.
    Nothing,
}

/// An Event that was published.
#[derive(Debug)]
struct PublishedEvent {
    reason: String,
    note: String,
    name: String,
    count: i32,
    last_observed: Timestamp,
}

/// Recently published Events, by uid of the job.
#[derive(Debug)]
pub(super) struct EventRecorder {
    instance: String,
    published: Mutex<JobEvents>,
}

#[derive(Debug, Default)]
struct JobEvents {
    jobs: HashMap<String, Vec<PublishedEvent>>,
    last_sweep: Timestamp,
}

impl EventRecorder {
    /// Creates a recorder whose Events name `instance` as their reporter.
    pub(super) fn new(instance: &str) -> Self {
        Self {
            instance: truncate(instance, MAX_INSTANCE_BYTES),
            published: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, JobEvents> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the request that publishes `event` about `job`.
    pub(super) fn write(&self, job: &Value, event: &JobEvent) -> EventWrite {
        let text = |name: &str| job["metadata"][name].as_str().unwrap_or_default().to_owned();
        let (name, uid) = (text("name"), text("uid"));
        let mut state = self.lock();
        state.sweep(event.at);
        let events = state.jobs.entry(uid.clone()).or_default();
        events.retain(|published| event.at.since(published.last_observed) < SERIES_WINDOW);
        let is_repetition = |published: &&mut PublishedEvent| {
            published.reason == event.reason && published.note == event.note
        };
        if let Some(published) = events.iter_mut().find(is_repetition) {
            published.count = published.count.saturating_add(1);
            published.last_observed = event.at;
            let series = EventSeries {
                count: published.count,
                last_observed_time: time(event.at),
            };
            return EventWrite::Count(published.name.clone(), json!({ "series": series }));
        }
        if events.len() >= MAX_EVENTS_PER_JOB {
            return EventWrite::Nothing;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let event_name = format!("{name}.{:x}", now.as_nanos());
        events.push(PublishedEvent {
            reason: event.reason.clone(),
            note: event.note.clone(),
            name: event_name.clone(),
            count: 1,
            last_observed: event.at,
        });
        EventWrite::Create(Box::new(Event {
            metadata: ObjectMeta {
                namespace: Some(text("namespace")),
                name: Some(event_name),
                ..ObjectMeta::default()
            },
            action: Some("Reconcile".to_owned()),
            reason: Some(event.reason.clone()),
            note: Some(truncate(&event.note, MAX_NOTE_BYTES)),
            type_: Some(
                match event.severity {
                    Severity::Normal => "Normal",
                    Severity::Warning => "Warning",
                }
                .to_owned(),
            ),
            event_time: Some(time(event.at)),
            regarding: Some(ObjectReference {
                api_version: Some(IpuJob::API_VERSION.to_owned()),
                kind: Some(IpuJob::KIND.to_owned()),
                namespace: Some(text("namespace")),
                name: Some(name),
                uid: Some(uid),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(FIELD_MANAGER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        }))
    }

    /// Forgets the Event of this name of `job`, which does not exist: its next repetition creates a new one.
    pub(super) fn forget(&self, job: &Value, name: &str) {
        let uid = job["metadata"]["uid"].as_str().unwrap_or_default();
        if let Some(events) = self.lock().jobs.get_mut(uid) {
            events.retain(|published| published.name != name);
        }
    }
}

impl JobEvents {
    /// Removes jobs without recent Events, once per window.
    fn sweep(&mut self, now: Timestamp) {
        if now.since(self.last_sweep) < SERIES_WINDOW {
            return;
        }
        self.last_sweep = now;
        self.jobs.retain(|_, events| {
            events
                .iter()
                .any(|published| now.since(published.last_observed) < SERIES_WINDOW)
        });
    }
}

fn time(at: Timestamp) -> MicroTime {
    let millis = i64::try_from(at.as_millis()).unwrap_or(i64::MAX);
    MicroTime(jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX))
}

/// Truncates a text to at most so many bytes.
fn truncate(text: &str, max_bytes: usize) -> String {
    if text.len() <= max_bytes {
        return text.to_owned();
    }
    const ELLIPSIS: &str = "…";
    let mut ends = (0..=max_bytes - ELLIPSIS.len()).rev();
    let end = ends.find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}{ELLIPSIS}", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}")}})
    }

    fn job_event(seconds: u64, note: &str) -> JobEvent {
        JobEvent {
            severity: Severity::Warning,
            reason: "IPUJobRestarting".to_owned(),
            note: note.to_owned(),
            at: Timestamp::from_millis(1_000_000_000 + seconds * 1000),
        }
    }

    fn created(write: EventWrite) -> Event {
        match write {
            EventWrite::Create(event) => *event,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_repeated_event_counts_in_its_series_and_another_note_creates_a_new_event() {
        let events = EventRecorder::new("pod");
        let first = created(events.write(&job("a"), &job_event(0, "exit code 1")));
        let other = created(events.write(&job("a"), &job_event(1, "exit code 2")));
        assert_ne!(first.metadata.name, other.metadata.name);
        assert_eq!(other.note.as_deref(), Some("exit code 2"));
        assert_eq!(
            serde_json::to_value(&other.event_time).unwrap(),
            "1970-01-12T13:46:41.000000Z"
        );
        let EventWrite::Count(name, patch) = events.write(&job("a"), &job_event(60, "exit code 1")) else {
            panic!("the event is a repetition");
        };
        assert_eq!(Some(name), first.metadata.name);
        assert_eq!(
            patch["series"],
            json!({"count": 2, "lastObservedTime": "1970-01-12T13:47:40.000000Z"})
        );
        created(events.write(&job("b"), &job_event(60, "exit code 1")));
        let window = 60 + SERIES_WINDOW.as_secs();
        created(events.write(&job("a"), &job_event(window, "exit code 1")));
    }

    #[test]
    fn an_event_that_could_not_be_written_is_created_again() {
        let events = EventRecorder::new("pod");
        let first = created(events.write(&job("a"), &job_event(0, "exit code 1")));
        events.forget(&job("a"), &first.metadata.name.unwrap());
        created(events.write(&job("a"), &job_event(1, "exit code 1")));
    }

    #[test]
    fn the_number_of_events_per_job_and_window_is_limited() {
        let events = EventRecorder::new("pod");
        let write = |second: u64| events.write(&job("a"), &job_event(second, &format!("attempt {second}")));
        let many = (0..100)
            .filter(|second| write(*second) != EventWrite::Nothing)
            .count();
        assert_eq!(many, MAX_EVENTS_PER_JOB);
        created(events.write(&job("b"), &job_event(100, "attempt 1")));
        created(write(100 + SERIES_WINDOW.as_secs()));
    }

    #[test]
    fn jobs_without_recent_events_are_forgotten() {
        let events = EventRecorder::new("pod");
        for (second, name) in (0..1000).map(|n| (n, format!("job-{n}"))) {
            let _ = events.write(&job(&name), &job_event(second, "a"));
        }
        let kept = events.lock().jobs.len();
        assert!(
            kept < 2 * usize::try_from(SERIES_WINDOW.as_secs()).unwrap() + 2,
            "{kept}"
        );
    }

    #[test]
    fn notes_and_instance_names_are_truncated_to_the_limits_of_the_api() {
        let events = EventRecorder::new(&"i".repeat(300));
        let event = created(events.write(&job("a"), &job_event(0, &"ü".repeat(2000))));
        let note = event.note.unwrap();
        assert!(
            note.len() <= MAX_NOTE_BYTES && note.len() > MAX_NOTE_BYTES - 4 && note.ends_with("ü…"),
            "{note}"
        );
        assert_eq!(event.reporting_instance.unwrap().len(), MAX_INSTANCE_BYTES);
    }
}
