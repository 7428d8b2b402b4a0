//! Licenses that a reservation withholds.

use ipu_slurm::{Reservation, reservation_command, withheld};
use proptest::prelude::*;

use crate::scontrol::{VERSIONS, captured};

const DAY: u64 = 86_400;
const NOW: u64 = 1_795_599_500;

fn present(version: &str) -> Vec<Reservation> {
    Reservation::parse_list(&captured(version, "reservations")).unwrap_or_else(|e| panic!("{version}: {e}"))
}

/// Returns the command from the reservations of a text.
fn command(text: &str, wanted: u32, now: u64) -> String {
    let present = Reservation::parse_list(text).expect("the text is valid");
    let command = reservation_command("pod64", wanted, &present, now);
    command
        .expect("the reservation is ours")
        .unwrap_or_default()
        .join(" ")
}

#[test]
fn ipus_of_others_are_withheld() {
    for (licenses, free, held_here, expected) in [
        (64, 64, 0, 0),
        (64, 16, 32, 16),
        (64, 0, 0, 64),
        (64, 0, 64, 0),
        (64, 64, 64, 0),
        (32, 64, 0, 0),
        (0, 0, 0, 0),
        (u32::MAX, u32::MAX, u32::MAX, 0),
    ] {
        assert_eq!(withheld(licenses, free, held_here), expected);
    }
}

#[test]
fn reservations_are_read_on_every_version() {
    for version in VERSIONS {
        let present = present(version);
        let ours = present.iter().find(|r| r.name == "ipu_pod64").unwrap();
        assert_eq!((ours.has_nodes, ours.licenses.as_str()), (false, "pod64:32"));
        assert!(
            (364 * DAY..=366 * DAY).contains(&(ours.end_time - NOW)),
            "{version}"
        );
    }
    assert!(present("22.05").iter().any(|r| r.name == "other" && r.has_nodes));
    assert_eq!(
        Reservation::parse_list("No reservations in the system\n"),
        Ok(vec![])
    );
    assert!(Reservation::parse_list("Unable to contact slurm controller\n").is_err());
    let local = captured("22.05", "reservations").replace("EndTime=1", "EndTime=2027-11-25T1");
    let error = Reservation::parse_list(&local).unwrap_err().to_string();
    assert!(error.contains("SLURM_TIME_FORMAT=%s"), "{error}");
}

#[test]
fn the_command_leads_from_the_present_to_the_wanted_reservation() {
    let none = "No reservations in the system\n";
    assert_eq!(command(none, 0, NOW), "");
    assert_eq!(
        command(none, 48, NOW),
        "create reservation ReservationName=ipu_pod64 Licenses=pod64:48 StartTime=now Duration=UNLIMITED \
         Flags=LICENSE_ONLY Users=root",
    );
    for version in VERSIONS {
        let text = captured(version, "reservations");
        assert_eq!(command(&text, 32, NOW), "");
        assert_eq!(
            command(&text, 40, NOW),
            "update reservation ReservationName=ipu_pod64 Licenses=pod64:40"
        );
        assert_eq!(command(&text, 0, NOW), "delete ReservationName=ipu_pod64");
        assert_eq!(
            command(&text, 32, NOW + 200 * DAY),
            "update reservation ReservationName=ipu_pod64 EndTime=now+365days"
        );
        assert_eq!(
            command(&text, 8, NOW + 200 * DAY),
            "update reservation ReservationName=ipu_pod64 Licenses=pod64:8 EndTime=now+365days"
        );
    }
    let zero = captured("22.05", "reservations").replace("pod64:32", "pod64:0");
    assert_eq!(command(&zero, 0, NOW), "delete ReservationName=ipu_pod64");
    assert!(command(&zero, 8, NOW).starts_with("update "));
}

#[test]
fn a_reservation_of_the_same_name_that_is_not_ours_is_left_alone() {
    let text = captured("22.05", "reservations");
    for foreign in [
        text.replacen("Nodes=(null)", "Nodes=ipu-host-1", 1),
        text.replace("pod64:32", "pod64:32,matlab:1"),
        text.replace("pod64:32", "pod16:32"),
    ] {
        let present = Reservation::parse_list(&foreign).unwrap();
        for wanted in [0, 32] {
            let error = reservation_command("pod64", wanted, &present, NOW).unwrap_err();
            assert!(error.to_string().contains("another name"), "{error}");
        }
    }
}

proptest! {
    #[test]
    fn the_withheld_licenses_are_those_that_nothing_here_can_use(
        licenses in 0_u32..=4_096, free in 0_u32..=4_096, held in 0_u32..=4_096,
    ) {
        let count = withheld(licenses, free, held);
        prop_assert!(count <= licenses);
        // Jobs of this cluster can have at most what they hold and what is free.
        prop_assert!(licenses - count <= free + held);
        prop_assert!(count == 0 || licenses - count == free + held);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "(ReservationName=ipu_pod64 |EndTime=[0-9]{1,3} |Nodes= |Licenses=[a-z:0-9]{0,9}|\n|\\PC){0,12}") {
        if let Ok(present) = Reservation::parse_list(&text) {
            let _ = reservation_command("pod64", 1, &present, NOW);
        }
    }
}
