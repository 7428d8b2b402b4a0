//! Events as the API server has them: what is told again counts in the first Event of it, and nobody is told too much.

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

/// For how long after the last time what is told again counts in the Event of it, as the documentation of Events has it.
const WINDOW: Duration = Duration::from_secs(6 * 60);
/// How many Events of one job are created in that time: what is too much for whoever reads them, who finds all in the status.
const MAX_EVENTS_PER_JOB: usize = 25;
/// How many bytes the API server takes in a note.
const NOTE: usize = 1024;
/// How many bytes it takes in the name of the reporter.
const INSTANCE: usize = 128;

/// What is to be sent.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum EventWrite {
    Create(Box<Event>),
    /// A merge patch of the Event of this name.
    Count(String, Value),
    /// Nothing: its job has had its share.
    Nothing,
}

/// One that was told.
#[derive(Debug)]
struct PublishedEvent {
    reason: String,
    note: String,
    name: String,
    times: i32,
    last: Timestamp,
}

/// What was told lately, by the uid of the job.
#[derive(Debug)]
pub(super) struct Events {
    instance: String,
    published: Mutex<JobEvents>,
}

#[derive(Debug, Default)]
struct JobEvents {
    jobs: HashMap<String, Vec<PublishedEvent>>,
    swept: Timestamp,
}

impl Events {
    /// Those that `instance` reports.
    pub(super) fn of(instance: &str) -> Self {
        Self {
            instance: shortened(instance, INSTANCE),
            published: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, JobEvents> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What tells users of `job` about `event`.
    pub(super) fn write(&self, job: &Value, event: &JobEvent) -> EventWrite {
        let text = |name: &str| job["metadata"][name].as_str().unwrap_or_default().to_owned();
        let (name, uid) = (text("name"), text("uid"));
        let mut known = self.known();
        known.sweep(event.at);
        let said = known.jobs.entry(uid.clone()).or_default();
        said.retain(|said| event.at.since(said.last) < WINDOW);
        let same = |said: &&mut PublishedEvent| said.reason == event.reason && said.note == event.note;
        if let Some(said) = said.iter_mut().find(same) {
            said.times = said.times.saturating_add(1);
            said.last = event.at;
            let series = EventSeries {
                count: said.times,
                last_observed_time: time(event.at),
            };
            return EventWrite::Count(said.name.clone(), json!({ "series": series }));
        }
        if said.len() >= MAX_EVENTS_PER_JOB {
            return EventWrite::Nothing;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let own_name = format!("{name}.{:x}", now.as_nanos());
        said.push(PublishedEvent {
            reason: event.reason.clone(),
            note: event.note.clone(),
            name: own_name.clone(),
            times: 1,
            last: event.at,
        });
        EventWrite::Create(Box::new(Event {
            metadata: ObjectMeta {
                namespace: Some(text("namespace")),
                name: Some(own_name),
                ..ObjectMeta::default()
            },
            action: Some("Reconcile".to_owned()),
            reason: Some(event.reason.clone()),
            note: Some(shortened(&event.note, NOTE)),
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

    /// The Event of this name, of `job`, is not there: what it says is told anew the next time.
    pub(super) fn forget(&self, job: &Value, name: &str) {
        let uid = job["metadata"]["uid"].as_str().unwrap_or_default();
        if let Some(said) = self.known().jobs.get_mut(uid) {
            said.retain(|said| said.name != name);
        }
    }
}

impl JobEvents {
    /// Forgets jobs that nothing was told of lately, now and then.
    fn sweep(&mut self, now: Timestamp) {
        if now.since(self.swept) < WINDOW {
            return;
        }
        self.swept = now;
        self.jobs
            .retain(|_, said| said.iter().any(|said| now.since(said.last) < WINDOW));
    }
}

fn time(at: Timestamp) -> MicroTime {
    let millis = i64::try_from(at.as_millis()).unwrap_or(i64::MAX);
    MicroTime(jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX))
}

/// A text of at most so many bytes.
fn shortened(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    const MARK: &str = "…";
    let mut ends = (0..=most - MARK.len()).rev();
    let end = ends.find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}{MARK}", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}")}})
    }

    fn told(seconds: u64, note: &str) -> JobEvent {
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
    fn what_is_told_again_counts_in_its_event_and_other_words_are_an_event_of_their_own() {
        let events = Events::of("pod");
        let first = created(events.write(&job("a"), &told(0, "exit code 1")));
        let other = created(events.write(&job("a"), &told(1, "exit code 2")));
        assert_ne!(first.metadata.name, other.metadata.name);
        assert_eq!(other.note.as_deref(), Some("exit code 2"));
        assert_eq!(
            serde_json::to_value(&other.event_time).unwrap(),
            "1970-01-12T13:46:41.000000Z"
        );
        let EventWrite::Count(name, patch) = events.write(&job("a"), &told(60, "exit code 1")) else {
            panic!("it is told again");
        };
        assert_eq!(Some(name), first.metadata.name);
        assert_eq!(
            patch["series"],
            json!({"count": 2, "lastObservedTime": "1970-01-12T13:47:40.000000Z"})
        );
        created(events.write(&job("b"), &told(60, "exit code 1")));
        let window = 60 + WINDOW.as_secs();
        created(events.write(&job("a"), &told(window, "exit code 1")));
    }

    #[test]
    fn what_could_not_be_written_is_told_anew() {
        let events = Events::of("pod");
        let first = created(events.write(&job("a"), &told(0, "exit code 1")));
        events.forget(&job("a"), &first.metadata.name.unwrap());
        created(events.write(&job("a"), &told(1, "exit code 1")));
    }

    #[test]
    fn a_job_that_has_ever_new_words_is_told_of_until_it_has_had_its_share() {
        let events = Events::of("pod");
        let tell = |second: u64| events.write(&job("a"), &told(second, &format!("attempt {second}")));
        let many = (0..100)
            .filter(|second| tell(*second) != EventWrite::Nothing)
            .count();
        assert_eq!(many, MAX_EVENTS_PER_JOB);
        created(events.write(&job("b"), &told(100, "attempt 1")));
        created(tell(100 + WINDOW.as_secs()));
    }

    #[test]
    fn jobs_that_nothing_was_told_of_lately_are_forgotten() {
        let events = Events::of("pod");
        for (second, name) in (0..1000).map(|n| (n, format!("job-{n}"))) {
            let _ = events.write(&job(&name), &told(second, "a"));
        }
        let kept = events.known().jobs.len();
        assert!(
            kept < 2 * usize::try_from(WINDOW.as_secs()).unwrap() + 2,
            "{kept}"
        );
    }

    #[test]
    fn words_and_names_are_as_short_as_the_api_server_takes_them() {
        let events = Events::of(&"i".repeat(300));
        let event = created(events.write(&job("a"), &told(0, &"ü".repeat(2000))));
        let note = event.note.unwrap();
        assert!(
            note.len() <= NOTE && note.len() > NOTE - 4 && note.ends_with("ü…"),
            "{note}"
        );
        assert_eq!(event.reporting_instance.unwrap().len(), INSTANCE);
    }
}
