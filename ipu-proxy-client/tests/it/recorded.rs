//! Documents that a proxy answered before the names of the code changed are read and written unchanged.

use ipu_proxy_client::{
    ControllerList, CordonList, CordonedDocument, DeletedDocument, DryRunResponse, PartitionDocument,
    PartitionList, ProblemDocument, RecordList, RepairDocument, Stats, Uncordoned, WaitingList,
};
use serde_json::Value;

const DOCUMENTS: &str = include_str!("../data/documents-0.1.json");

#[test]
fn recorded_documents_are_read_and_written_unchanged() {
    let all: Value = serde_json::from_str(DOCUMENTS).unwrap();
    macro_rules! is_unchanged {
        ($($document:ident)*) => {$(
            let recorded = all.get(stringify!($document)).unwrap();
            let read: $document = serde_json::from_value(recorded.clone()).unwrap();
            assert_eq!(&serde_json::to_value(&read).unwrap(), recorded);
        )*};
    }
    is_unchanged! {
        ControllerList CordonList CordonedDocument DeletedDocument DryRunResponse PartitionDocument PartitionList
        ProblemDocument RecordList RepairDocument Stats Uncordoned WaitingList
    }
}
