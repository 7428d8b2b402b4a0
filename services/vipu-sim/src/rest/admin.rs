//! The administrator's routes under `/sim/`, which no real controller has.

use bytes::Bytes;
use http::StatusCode;
use ipu_core::hardware::Allocation;
use serde::Deserialize;
use serde_json::json;
use warp::Filter;
use warp::filters::BoxedFilter;
use warp::reply::{Reply as _, Response};

use super::{parse_body, refuse, respond, with};
use crate::api::Api;
use crate::error::SimError;
use crate::faults::{Fault, Faults};
use crate::state::{Health, NewAgent, Settings};

/// Builds all routes under `/sim/`.
pub(crate) fn routes(api: &Api, faults: &Faults) -> BoxedFilter<(Response,)> {
    state_routes(api)
        .or(hardware_routes(api))
        .unify()
        .or(fault_routes(faults))
        .unify()
        .boxed()
}

/// Builds the routes for state, map and settings.
fn state_routes(api: &Api) -> BoxedFilter<(Response,)> {
    let state = warp::path!("sim" / "state")
        .and(warp::get())
        .and(with(api))
        .then(|api: Api| async move { respond(StatusCode::OK, api.read(|state| Ok(state.pod())).await) });
    let map = warp::path!("sim" / "map")
        .and(warp::get())
        .and(with(api))
        .then(|api: Api| async move {
            match api.read(|state| Ok(crate::ascii_map::draw(state))).await {
                Ok(text) => text.into_response(),
                Err(refusal) => refuse(&refusal),
            }
        });
    let settings = warp::path!("sim" / "settings")
        .and(warp::get())
        .and(with(api))
        .then(|api: Api| async move { respond(StatusCode::OK, api.read(|state| Ok(state.settings)).await) });
    let set = warp::path!("sim" / "settings")
        .and(warp::put())
        .and(warp::body::bytes())
        .and(with(api))
        .then(|body: Bytes, api: Api| async move {
            let change = |settings: Settings| {
                api.change("set delays", move |state, now| {
                    state.set_settings(settings, now);
                    Ok(settings)
                })
            };
            match parse_body(&body) {
                Ok(settings) => respond(StatusCode::OK, change(settings).await),
                Err(refusal) => refuse(&refusal),
            }
        });
    state.or(map).unify().or(settings).unify().or(set).unify().boxed()
}

/// Builds the routes for agents, allocations and IPU health.
fn hardware_routes(api: &Api) -> BoxedFilter<(Response,)> {
    let agents = warp::path!("sim" / "agents")
        .and(warp::get())
        .and(with(api))
        .then(
            |api: Api| async move { respond(StatusCode::OK, api.read(|state| state.attributes(&[])).await) },
        );
    let add_agent = warp::path!("sim" / "agents")
        .and(warp::post())
        .and(warp::body::bytes())
        .and(with(api))
        .then(|body: Bytes, api: Api| async move {
            let change = |new: NewAgent| api.change("add agent", |state, now| state.add_agent(new, now));
            match parse_body(&body) {
                Ok(new) => respond(StatusCode::CREATED, change(new).await.map(|()| json!({}))),
                Err(refusal) => refuse(&refusal),
            }
        });
    let remove_agent = warp::path!("sim" / "agents" / String)
        .and(warp::delete())
        .and(with(api))
        .then(|id: String, api: Api| async move {
            let result = api
                .change("remove agent", move |state, now| state.remove_agent(&id, now))
                .await;
            respond(StatusCode::OK, result.map(|()| json!({})))
        });
    let health = warp::path!("sim" / "ipus" / String / u32)
        .and(warp::post())
        .and(warp::body::bytes())
        .and(with(api))
        .then(|agent: String, ipu: u32, body: Bytes, api: Api| async move {
            match parse_body::<HealthBody>(&body) {
                Ok(HealthBody { health }) => {
                    let result = api
                        .change("set health", move |state, now| {
                            state.set_health(&agent, ipu, health, now)
                        })
                        .await;
                    respond(StatusCode::OK, result.map(|()| json!({})))
                }
                Err(refusal) => refuse(&refusal),
            }
        });
    agents
        .or(add_agent)
        .unify()
        .or(remove_agent)
        .unify()
        .or(health)
        .unify()
        .or(allocation_routes(api))
        .unify()
        .boxed()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HealthBody {
    health: Health,
}

fn allocation_routes(api: &Api) -> BoxedFilter<(Response,)> {
    let list = warp::path!("sim" / "allocations")
        .and(warp::get())
        .and(with(api))
        .then(|api: Api| async move {
            let allocations = api
                .read(|state| Ok(state.hardware.topology.allocations().to_vec()))
                .await;
            respond(StatusCode::OK, allocations)
        });
    let add = warp::path!("sim" / "allocations")
        .and(warp::post())
        .and(warp::body::bytes())
        .and(with(api))
        .then(|body: Bytes, api: Api| async move {
            let change =
                |new: Allocation| api.change("add allocation", |state, now| state.add_allocation(new, now));
            match parse_body(&body) {
                Ok(new) => respond(StatusCode::CREATED, change(new).await.map(|()| json!({}))),
                Err(refusal) => refuse(&refusal),
            }
        });
    let remove = warp::path!("sim" / "allocations" / String)
        .and(warp::delete())
        .and(with(api))
        .then(|id: String, api: Api| async move {
            let result = api
                .change("remove allocation", move |state, now| {
                    state.remove_allocation(&id, now)
                })
                .await;
            respond(StatusCode::OK, result.map(|()| json!({})))
        });
    list.or(add).unify().or(remove).unify().boxed()
}

fn fault_routes(faults: &Faults) -> BoxedFilter<(Response,)> {
    let list = warp::path!("sim" / "faults")
        .and(warp::get())
        .and(with(faults))
        .map(|faults: Faults| respond(StatusCode::OK, Ok(faults.list())));
    let set = warp::path!("sim" / "faults")
        .and(warp::put())
        .and(warp::body::bytes())
        .and(with(faults))
        .map(|body: Bytes, faults: Faults| {
            let parsed = parse_body::<Vec<Fault>>(&body).and_then(validate_faults);
            respond(
                StatusCode::OK,
                parsed.map(|new| {
                    tracing::info!(?new, "faults set");
                    faults.set(new);
                    faults.list()
                }),
            )
        });
    let clear = warp::path!("sim" / "faults")
        .and(warp::delete())
        .and(with(faults))
        .map(|faults: Faults| {
            tracing::info!("faults cleared");
            faults.clear();
            respond(StatusCode::OK, Ok(faults.list()))
        });
    list.or(set).unify().or(clear).unify().boxed()
}

/// Rejects an error rate outside 0 to 1.
fn validate_faults(faults: Vec<Fault>) -> Result<Vec<Fault>, SimError> {
    use crate::faults::FaultKind;
    for fault in &faults {
        if let FaultKind::Error { rate, .. } = fault.kind
            && !(0.0..=1.0).contains(&rate)
        {
            return Err(SimError::invalid("rate", rate, "must be from 0 to 1"));
        }
    }
    Ok(faults)
}
