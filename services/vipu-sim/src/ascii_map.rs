//! Draws the Pod as text, for people who look at `GET /sim/map`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ipu_core::{AgentId, IpuAddress, PartitionId};

use crate::state::SimState;

/// The letters of partitions, in order; the ones after them are drawn as `#`.
const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwyz0123456789";
/// Machines drawn in one line.
const MACHINES_PER_ROW: usize = 4;

/// The whole Pod: each link domain with its machines of four IPUs, and what the letters mean.
pub(crate) fn draw(state: &SimState) -> String {
    let topology = &state.hardware.topology;
    let letters: BTreeMap<&PartitionId, char> = state
        .partitions
        .keys()
        .zip(
            LETTERS
                .iter()
                .copied()
                .map(char::from)
                .chain(std::iter::repeat('#')),
        )
        .collect();
    let mut holders = BTreeMap::new();
    for (id, held) in &state.partitions {
        holders.extend(state.places(&held.spec).into_iter().map(|at| (at, letters[id])));
    }
    let pod = state.pod();
    let mut text = format!(
        "{topology}: {} IPUs, {} free, {} in {} partitions, {} bad\n",
        pod.ipus,
        pod.free,
        holders.len(),
        pod.partitions.len(),
        pod.bad.len()
    );
    for link_domain in 0..topology.link_domains() {
        draw_domain(&mut text, state, &holders, link_domain);
    }
    draw_legend(&mut text, state, &letters);
    text
}

fn draw_domain(text: &mut String, state: &SimState, holders: &BTreeMap<IpuAddress, char>, link_domain: u32) {
    let Some((cluster, number)) = state.hardware.topology.home(link_domain) else {
        return;
    };
    let Some(domain) = cluster.link_domains.get(number as usize) else {
        return;
    };
    line(
        text,
        format_args!("\ncluster {}, link domain {number}", cluster.id),
    );
    let names: Vec<&str> = domain
        .machines
        .iter()
        .map(|agent| agent.as_ref().map_or("(empty)", AgentId::as_str))
        .collect();
    // A name wider than this would break the frame of every other machine.
    let width = names
        .iter()
        .map(|name| name.len())
        .max()
        .unwrap_or(0)
        .clamp(9, 24);
    for (row, machines) in names.chunks(MACHINES_PER_ROW).enumerate() {
        let first = row * MACHINES_PER_ROW;
        let edge = |left, middle: &str, right| {
            let segments = vec!["─".repeat(width + 2); machines.len()];
            format!("  {left}{}{right}", segments.join(middle))
        };
        line(text, format_args!("{}", edge('┌', "┬", '┐')));
        let titles: Vec<String> = machines
            .iter()
            .map(|name| format!(" {name:<width$.width$} "))
            .collect();
        line(text, format_args!("  │{}│", titles.join("│")));
        let cells: Vec<String> = (first..first + machines.len())
            .map(|slot| format!(" {:<width$} ", cells(state, holders, link_domain, slot)))
            .collect();
        line(
            text,
            format_args!(
                "  │{}│  IPUs {}-{}",
                cells.join("│"),
                first * 4,
                (first + machines.len()) * 4 - 1
            ),
        );
        line(text, format_args!("{}", edge('└', "┴", '┘')));
    }
}

/// The four IPUs of one machine: a letter or `·`, and `!` behind a bad one.
fn cells(state: &SimState, holders: &BTreeMap<IpuAddress, char>, link_domain: u32, slot: usize) -> String {
    let ipus = (0..4_u8).filter_map(|i| Some(u8::try_from(slot * 4).ok()? + i));
    ipus.map(|ipu| {
        let at = IpuAddress { link_domain, ipu };
        let mark = match (state.hardware.topology.contains(at), holders.get(&at)) {
            (false, _) => ' ',
            (true, Some(letter)) => *letter,
            (true, None) if !allocated(state, at) => '-',
            (true, None) => '·',
        };
        let health = if state.hardware.bad.contains(&at) {
            '!'
        } else {
            ' '
        };
        format!("{mark}{health}")
    })
    .collect()
}

/// Whether partitions can draw the IPU from any allocation.
fn allocated(state: &SimState, at: IpuAddress) -> bool {
    state
        .hardware
        .topology
        .allocations()
        .iter()
        .any(|of| state.hardware.is_in(at, of))
}

fn draw_legend(text: &mut String, state: &SimState, letters: &BTreeMap<&PartitionId, char>) {
    line(text, format_args!("\n  · free   ! bad   - in no allocation"));
    let widest = state
        .partitions
        .keys()
        .map(|id| id.as_str().len())
        .max()
        .unwrap_or(0);
    for (id, held) in &state.partitions {
        let spec = &held.spec;
        let gcds = if spec.num_gcds == 1 {
            "1 GCD".to_owned()
        } else {
            format!("{} GCDs", spec.num_gcds)
        };
        line(
            text,
            format_args!(
                "  {} {id:<widest$}  {:<9}  {:>3} IPUs, {gcds}, allocation {}{}",
                letters[id],
                held.phase.label(),
                spec.ipus.len(),
                spec.allocation_id,
                if spec.reconfigurable {
                    ", reconfigurable"
                } else {
                    ""
                },
            ),
        );
        for error in held.phase.errors() {
            line(text, format_args!("      {error}"));
        }
    }
}

/// Appends a line. Writing to a string cannot fail.
fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).ok();
    text.push('\n');
}
