impl serde::Serialize for Allocation {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.id.is_empty() {
            len += 1;
        }
        if self.spec.is_some() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.Allocation", len)?;
        if !self.id.is_empty() {
            struct_ser.serialize_field("id", &self.id)?;
        }
        if let Some(v) = self.spec.as_ref() {
            struct_ser.serialize_field("spec", v)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for Allocation {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "id",
            "spec",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            Id,
            Spec,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "id" => Ok(GeneratedField::Id),
                            "spec" => Ok(GeneratedField::Spec),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = Allocation;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.Allocation")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<Allocation, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut id__ = None;
                let mut spec__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::Id => {
                            if id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("id"));
                            }
                            id__ = Some(map_.next_value()?);
                        }
                        GeneratedField::Spec => {
                            if spec__.is_some() {
                                return Err(serde::de::Error::duplicate_field("spec"));
                            }
                            spec__ = map_.next_value()?;
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(Allocation {
                    id: id__.unwrap_or_default(),
                    spec: spec__,
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.Allocation", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for AllocationSpec {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.cluster_id.is_empty() {
            len += 1;
        }
        if !self.agent_ids.is_empty() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.AllocationSpec", len)?;
        if !self.cluster_id.is_empty() {
            struct_ser.serialize_field("clusterId", &self.cluster_id)?;
        }
        if !self.agent_ids.is_empty() {
            struct_ser.serialize_field("agentIds", &self.agent_ids)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for AllocationSpec {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "cluster_id",
            "clusterId",
            "agent_ids",
            "agentIds",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            ClusterId,
            AgentIds,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "clusterId" | "cluster_id" => Ok(GeneratedField::ClusterId),
                            "agentIds" | "agent_ids" => Ok(GeneratedField::AgentIds),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = AllocationSpec;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.AllocationSpec")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<AllocationSpec, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut cluster_id__ = None;
                let mut agent_ids__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::ClusterId => {
                            if cluster_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("clusterId"));
                            }
                            cluster_id__ = Some(map_.next_value()?);
                        }
                        GeneratedField::AgentIds => {
                            if agent_ids__.is_some() {
                                return Err(serde::de::Error::duplicate_field("agentIds"));
                            }
                            agent_ids__ = Some(map_.next_value()?);
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(AllocationSpec {
                    cluster_id: cluster_id__.unwrap_or_default(),
                    agent_ids: agent_ids__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.AllocationSpec", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for CreatePartitionReply {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.partition_id.is_empty() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.CreatePartitionReply", len)?;
        if !self.partition_id.is_empty() {
            struct_ser.serialize_field("partitionId", &self.partition_id)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for CreatePartitionReply {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "partition_id",
            "partitionId",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            PartitionId,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "partitionId" | "partition_id" => Ok(GeneratedField::PartitionId),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = CreatePartitionReply;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.CreatePartitionReply")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<CreatePartitionReply, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut partition_id__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::PartitionId => {
                            if partition_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("partitionId"));
                            }
                            partition_id__ = Some(map_.next_value()?);
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(CreatePartitionReply {
                    partition_id: partition_id__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.CreatePartitionReply", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for CreatePartitionRequest {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if self.requirements.is_some() {
            len += 1;
        }
        if self.disable_auto_reset {
            len += 1;
        }
        if self.relocatable {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.CreatePartitionRequest", len)?;
        if let Some(v) = self.requirements.as_ref() {
            struct_ser.serialize_field("requirements", v)?;
        }
        if self.disable_auto_reset {
            struct_ser.serialize_field("disableAutoReset", &self.disable_auto_reset)?;
        }
        if self.relocatable {
            struct_ser.serialize_field("relocatable", &self.relocatable)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for CreatePartitionRequest {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "requirements",
            "disable_auto_reset",
            "disableAutoReset",
            "relocatable",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            Requirements,
            DisableAutoReset,
            Relocatable,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "requirements" => Ok(GeneratedField::Requirements),
                            "disableAutoReset" | "disable_auto_reset" => Ok(GeneratedField::DisableAutoReset),
                            "relocatable" => Ok(GeneratedField::Relocatable),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = CreatePartitionRequest;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.CreatePartitionRequest")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<CreatePartitionRequest, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut requirements__ = None;
                let mut disable_auto_reset__ = None;
                let mut relocatable__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::Requirements => {
                            if requirements__.is_some() {
                                return Err(serde::de::Error::duplicate_field("requirements"));
                            }
                            requirements__ = map_.next_value()?;
                        }
                        GeneratedField::DisableAutoReset => {
                            if disable_auto_reset__.is_some() {
                                return Err(serde::de::Error::duplicate_field("disableAutoReset"));
                            }
                            disable_auto_reset__ = Some(map_.next_value()?);
                        }
                        GeneratedField::Relocatable => {
                            if relocatable__.is_some() {
                                return Err(serde::de::Error::duplicate_field("relocatable"));
                            }
                            relocatable__ = Some(map_.next_value()?);
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(CreatePartitionRequest {
                    requirements: requirements__,
                    disable_auto_reset: disable_auto_reset__.unwrap_or_default(),
                    relocatable: relocatable__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.CreatePartitionRequest", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for GatewayRoutingType {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        let variant = match self {
            Self::GrtUndefined => "GRT_UNDEFINED",
            Self::GrtRing => "GRT_RING",
            Self::GrtSwring => "GRT_SWRING",
        };
        serializer.serialize_str(variant)
    }
}
impl<'de> serde::Deserialize<'de> for GatewayRoutingType {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "GRT_UNDEFINED",
            "GRT_RING",
            "GRT_SWRING",
        ];

        struct GeneratedVisitor;

        impl serde::de::Visitor<'_> for GeneratedVisitor {
            type Value = GatewayRoutingType;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(formatter, "expected one of: {:?}", &FIELDS)
            }

            fn visit_i64<E>(self, v: i64) -> std::result::Result<Self::Value, E>
            where
                E: serde::de::Error,
            {
                i32::try_from(v)
                    .ok()
                    .and_then(|x| x.try_into().ok())
                    .ok_or_else(|| {
                        serde::de::Error::invalid_value(serde::de::Unexpected::Signed(v), &self)
                    })
            }

            fn visit_u64<E>(self, v: u64) -> std::result::Result<Self::Value, E>
            where
                E: serde::de::Error,
            {
                i32::try_from(v)
                    .ok()
                    .and_then(|x| x.try_into().ok())
                    .ok_or_else(|| {
                        serde::de::Error::invalid_value(serde::de::Unexpected::Unsigned(v), &self)
                    })
            }

            fn visit_str<E>(self, value: &str) -> std::result::Result<Self::Value, E>
            where
                E: serde::de::Error,
            {
                match value {
                    "GRT_UNDEFINED" => Ok(GatewayRoutingType::GrtUndefined),
                    "GRT_RING" => Ok(GatewayRoutingType::GrtRing),
                    "GRT_SWRING" => Ok(GatewayRoutingType::GrtSwring),
                    _ => Err(serde::de::Error::unknown_variant(value, FIELDS)),
                }
            }
        }
        deserializer.deserialize_any(GeneratedVisitor)
    }
}
impl serde::Serialize for Gcd {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.devices.is_empty() {
            len += 1;
        }
        if !self.attributes.is_empty() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.Gcd", len)?;
        if !self.devices.is_empty() {
            struct_ser.serialize_field("devices", &self.devices)?;
        }
        if !self.attributes.is_empty() {
            struct_ser.serialize_field("attributes", &self.attributes)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for Gcd {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "devices",
            "attributes",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            Devices,
            Attributes,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "devices" => Ok(GeneratedField::Devices),
                            "attributes" => Ok(GeneratedField::Attributes),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = Gcd;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.Gcd")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<Gcd, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut devices__ = None;
                let mut attributes__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::Devices => {
                            if devices__.is_some() {
                                return Err(serde::de::Error::duplicate_field("devices"));
                            }
                            devices__ = Some(map_.next_value()?);
                        }
                        GeneratedField::Attributes => {
                            if attributes__.is_some() {
                                return Err(serde::de::Error::duplicate_field("attributes"));
                            }
                            attributes__ = Some(
                                map_.next_value::<std::collections::BTreeMap<_, _>>()?
                            );
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(Gcd {
                    devices: devices__.unwrap_or_default(),
                    attributes: attributes__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.Gcd", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for GcdId {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if self.id != 0 {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.GcdID", len)?;
        if self.id != 0 {
            struct_ser.serialize_field("id", &self.id)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for GcdId {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "id",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            Id,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "id" => Ok(GeneratedField::Id),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = GcdId;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.GcdID")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<GcdId, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut id__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::Id => {
                            if id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("id"));
                            }
                            id__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(GcdId {
                    id: id__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.GcdID", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for GetPartitionIpuofConfigReply {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if self.ipuof_config.is_some() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.GetPartitionIpuofConfigReply", len)?;
        if let Some(v) = self.ipuof_config.as_ref() {
            struct_ser.serialize_field("ipuofConfig", v)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for GetPartitionIpuofConfigReply {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "ipuof_config",
            "ipuofConfig",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            IpuofConfig,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "ipuofConfig" | "ipuof_config" => Ok(GeneratedField::IpuofConfig),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = GetPartitionIpuofConfigReply;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.GetPartitionIpuofConfigReply")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<GetPartitionIpuofConfigReply, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut ipuof_config__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::IpuofConfig => {
                            if ipuof_config__.is_some() {
                                return Err(serde::de::Error::duplicate_field("ipuofConfig"));
                            }
                            ipuof_config__ = map_.next_value()?;
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(GetPartitionIpuofConfigReply {
                    ipuof_config: ipuof_config__,
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.GetPartitionIpuofConfigReply", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for GetPartitionIpuofConfigRequest {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.partition_id.is_empty() {
            len += 1;
        }
        if self.gcd_id.is_some() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.GetPartitionIpuofConfigRequest", len)?;
        if !self.partition_id.is_empty() {
            struct_ser.serialize_field("partitionId", &self.partition_id)?;
        }
        if let Some(v) = self.gcd_id.as_ref() {
            struct_ser.serialize_field("gcdId", v)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for GetPartitionIpuofConfigRequest {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "partition_id",
            "partitionId",
            "gcd_id",
            "gcdId",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            PartitionId,
            GcdId,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "partitionId" | "partition_id" => Ok(GeneratedField::PartitionId),
                            "gcdId" | "gcd_id" => Ok(GeneratedField::GcdId),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = GetPartitionIpuofConfigRequest;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.GetPartitionIpuofConfigRequest")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<GetPartitionIpuofConfigRequest, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut partition_id__ = None;
                let mut gcd_id__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::PartitionId => {
                            if partition_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("partitionId"));
                            }
                            partition_id__ = Some(map_.next_value()?);
                        }
                        GeneratedField::GcdId => {
                            if gcd_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("gcdId"));
                            }
                            gcd_id__ = map_.next_value()?;
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(GetPartitionIpuofConfigRequest {
                    partition_id: partition_id__.unwrap_or_default(),
                    gcd_id: gcd_id__,
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.GetPartitionIpuofConfigRequest", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for GetPartitionStatusReply {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if self.status.is_some() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.GetPartitionStatusReply", len)?;
        if let Some(v) = self.status.as_ref() {
            struct_ser.serialize_field("status", v)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for GetPartitionStatusReply {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "status",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            Status,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "status" => Ok(GeneratedField::Status),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = GetPartitionStatusReply;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.GetPartitionStatusReply")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<GetPartitionStatusReply, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut status__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::Status => {
                            if status__.is_some() {
                                return Err(serde::de::Error::duplicate_field("status"));
                            }
                            status__ = map_.next_value()?;
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(GetPartitionStatusReply {
                    status: status__,
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.GetPartitionStatusReply", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for GetPartitionStatusRequest {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.partition_id.is_empty() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.GetPartitionStatusRequest", len)?;
        if !self.partition_id.is_empty() {
            struct_ser.serialize_field("partitionId", &self.partition_id)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for GetPartitionStatusRequest {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "partition_id",
            "partitionId",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            PartitionId,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "partitionId" | "partition_id" => Ok(GeneratedField::PartitionId),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = GetPartitionStatusRequest;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.GetPartitionStatusRequest")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<GetPartitionStatusRequest, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut partition_id__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::PartitionId => {
                            if partition_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("partitionId"));
                            }
                            partition_id__ = Some(map_.next_value()?);
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(GetPartitionStatusRequest {
                    partition_id: partition_id__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.GetPartitionStatusRequest", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for IpuLinkRoutingType {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        let variant = match self {
            Self::IrtUndefined => "IRT_UNDEFINED",
            Self::IrtDnc => "IRT_DNC",
            Self::IrtSwnc => "IRT_SWNC",
            Self::IrtBtnc => "IRT_BTNC",
            Self::IrtRingswnc => "IRT_RINGSWNC",
        };
        serializer.serialize_str(variant)
    }
}
impl<'de> serde::Deserialize<'de> for IpuLinkRoutingType {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "IRT_UNDEFINED",
            "IRT_DNC",
            "IRT_SWNC",
            "IRT_BTNC",
            "IRT_RINGSWNC",
        ];

        struct GeneratedVisitor;

        impl serde::de::Visitor<'_> for GeneratedVisitor {
            type Value = IpuLinkRoutingType;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(formatter, "expected one of: {:?}", &FIELDS)
            }

            fn visit_i64<E>(self, v: i64) -> std::result::Result<Self::Value, E>
            where
                E: serde::de::Error,
            {
                i32::try_from(v)
                    .ok()
                    .and_then(|x| x.try_into().ok())
                    .ok_or_else(|| {
                        serde::de::Error::invalid_value(serde::de::Unexpected::Signed(v), &self)
                    })
            }

            fn visit_u64<E>(self, v: u64) -> std::result::Result<Self::Value, E>
            where
                E: serde::de::Error,
            {
                i32::try_from(v)
                    .ok()
                    .and_then(|x| x.try_into().ok())
                    .ok_or_else(|| {
                        serde::de::Error::invalid_value(serde::de::Unexpected::Unsigned(v), &self)
                    })
            }

            fn visit_str<E>(self, value: &str) -> std::result::Result<Self::Value, E>
            where
                E: serde::de::Error,
            {
                match value {
                    "IRT_UNDEFINED" => Ok(IpuLinkRoutingType::IrtUndefined),
                    "IRT_DNC" => Ok(IpuLinkRoutingType::IrtDnc),
                    "IRT_SWNC" => Ok(IpuLinkRoutingType::IrtSwnc),
                    "IRT_BTNC" => Ok(IpuLinkRoutingType::IrtBtnc),
                    "IRT_RINGSWNC" => Ok(IpuLinkRoutingType::IrtRingswnc),
                    _ => Err(serde::de::Error::unknown_variant(value, FIELDS)),
                }
            }
        }
        deserializer.deserialize_any(GeneratedVisitor)
    }
}
impl serde::Serialize for IpuofDevice {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.ip.is_empty() {
            len += 1;
        }
        if self.server_port != 0 {
            len += 1;
        }
        if self.rdma_port != 0 {
            len += 1;
        }
        if self.device_id != 0 {
            len += 1;
        }
        if self.ipulink_segment_id != 0 {
            len += 1;
        }
        if self.routing_id != 0 {
            len += 1;
        }
        if self.ipu_arch_id != 0 {
            len += 1;
        }
        if self.ipu_id != 0 {
            len += 1;
        }
        if !self.chip_id.is_empty() {
            len += 1;
        }
        if !self.gwsw_version.is_empty() {
            len += 1;
        }
        if !self.ipum_sw_version.is_empty() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.IpuofDevice", len)?;
        if !self.ip.is_empty() {
            struct_ser.serialize_field("ip", &self.ip)?;
        }
        if self.server_port != 0 {
            struct_ser.serialize_field("serverPort", &self.server_port)?;
        }
        if self.rdma_port != 0 {
            struct_ser.serialize_field("rdmaPort", &self.rdma_port)?;
        }
        if self.device_id != 0 {
            struct_ser.serialize_field("deviceId", &self.device_id)?;
        }
        if self.ipulink_segment_id != 0 {
            struct_ser.serialize_field("ipulinkSegmentId", &self.ipulink_segment_id)?;
        }
        if self.routing_id != 0 {
            struct_ser.serialize_field("routingId", &self.routing_id)?;
        }
        if self.ipu_arch_id != 0 {
            struct_ser.serialize_field("ipuArchId", &self.ipu_arch_id)?;
        }
        if self.ipu_id != 0 {
            struct_ser.serialize_field("ipuId", &self.ipu_id)?;
        }
        if !self.chip_id.is_empty() {
            struct_ser.serialize_field("chipId", &self.chip_id)?;
        }
        if !self.gwsw_version.is_empty() {
            struct_ser.serialize_field("gwswVersion", &self.gwsw_version)?;
        }
        if !self.ipum_sw_version.is_empty() {
            struct_ser.serialize_field("ipumSwVersion", &self.ipum_sw_version)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for IpuofDevice {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "ip",
            "server_port",
            "serverPort",
            "rdma_port",
            "rdmaPort",
            "device_id",
            "deviceId",
            "ipulink_segment_id",
            "ipulinkSegmentId",
            "routing_id",
            "routingId",
            "ipu_arch_id",
            "ipuArchId",
            "ipu_id",
            "ipuId",
            "chip_id",
            "chipId",
            "gwsw_version",
            "gwswVersion",
            "ipum_sw_version",
            "ipumSwVersion",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            Ip,
            ServerPort,
            RdmaPort,
            DeviceId,
            IpulinkSegmentId,
            RoutingId,
            IpuArchId,
            IpuId,
            ChipId,
            GwswVersion,
            IpumSwVersion,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "ip" => Ok(GeneratedField::Ip),
                            "serverPort" | "server_port" => Ok(GeneratedField::ServerPort),
                            "rdmaPort" | "rdma_port" => Ok(GeneratedField::RdmaPort),
                            "deviceId" | "device_id" => Ok(GeneratedField::DeviceId),
                            "ipulinkSegmentId" | "ipulink_segment_id" => Ok(GeneratedField::IpulinkSegmentId),
                            "routingId" | "routing_id" => Ok(GeneratedField::RoutingId),
                            "ipuArchId" | "ipu_arch_id" => Ok(GeneratedField::IpuArchId),
                            "ipuId" | "ipu_id" => Ok(GeneratedField::IpuId),
                            "chipId" | "chip_id" => Ok(GeneratedField::ChipId),
                            "gwswVersion" | "gwsw_version" => Ok(GeneratedField::GwswVersion),
                            "ipumSwVersion" | "ipum_sw_version" => Ok(GeneratedField::IpumSwVersion),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = IpuofDevice;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.IpuofDevice")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<IpuofDevice, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut ip__ = None;
                let mut server_port__ = None;
                let mut rdma_port__ = None;
                let mut device_id__ = None;
                let mut ipulink_segment_id__ = None;
                let mut routing_id__ = None;
                let mut ipu_arch_id__ = None;
                let mut ipu_id__ = None;
                let mut chip_id__ = None;
                let mut gwsw_version__ = None;
                let mut ipum_sw_version__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::Ip => {
                            if ip__.is_some() {
                                return Err(serde::de::Error::duplicate_field("ip"));
                            }
                            ip__ = Some(map_.next_value()?);
                        }
                        GeneratedField::ServerPort => {
                            if server_port__.is_some() {
                                return Err(serde::de::Error::duplicate_field("serverPort"));
                            }
                            server_port__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::RdmaPort => {
                            if rdma_port__.is_some() {
                                return Err(serde::de::Error::duplicate_field("rdmaPort"));
                            }
                            rdma_port__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::DeviceId => {
                            if device_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("deviceId"));
                            }
                            device_id__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::IpulinkSegmentId => {
                            if ipulink_segment_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("ipulinkSegmentId"));
                            }
                            ipulink_segment_id__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::RoutingId => {
                            if routing_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("routingId"));
                            }
                            routing_id__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::IpuArchId => {
                            if ipu_arch_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("ipuArchId"));
                            }
                            ipu_arch_id__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::IpuId => {
                            if ipu_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("ipuId"));
                            }
                            ipu_id__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::ChipId => {
                            if chip_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("chipId"));
                            }
                            chip_id__ = Some(map_.next_value()?);
                        }
                        GeneratedField::GwswVersion => {
                            if gwsw_version__.is_some() {
                                return Err(serde::de::Error::duplicate_field("gwswVersion"));
                            }
                            gwsw_version__ = Some(map_.next_value()?);
                        }
                        GeneratedField::IpumSwVersion => {
                            if ipum_sw_version__.is_some() {
                                return Err(serde::de::Error::duplicate_field("ipumSwVersion"));
                            }
                            ipum_sw_version__ = Some(map_.next_value()?);
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(IpuofDevice {
                    ip: ip__.unwrap_or_default(),
                    server_port: server_port__.unwrap_or_default(),
                    rdma_port: rdma_port__.unwrap_or_default(),
                    device_id: device_id__.unwrap_or_default(),
                    ipulink_segment_id: ipulink_segment_id__.unwrap_or_default(),
                    routing_id: routing_id__.unwrap_or_default(),
                    ipu_arch_id: ipu_arch_id__.unwrap_or_default(),
                    ipu_id: ipu_id__.unwrap_or_default(),
                    chip_id: chip_id__.unwrap_or_default(),
                    gwsw_version: gwsw_version__.unwrap_or_default(),
                    ipum_sw_version: ipum_sw_version__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.IpuofDevice", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for ListIpuAttributesReply {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.entries.is_empty() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.ListIPUAttributesReply", len)?;
        if !self.entries.is_empty() {
            struct_ser.serialize_field("entries", &self.entries)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for ListIpuAttributesReply {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "entries",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            Entries,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "entries" => Ok(GeneratedField::Entries),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = ListIpuAttributesReply;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.ListIPUAttributesReply")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<ListIpuAttributesReply, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut entries__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::Entries => {
                            if entries__.is_some() {
                                return Err(serde::de::Error::duplicate_field("entries"));
                            }
                            entries__ = Some(map_.next_value()?);
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(ListIpuAttributesReply {
                    entries: entries__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.ListIPUAttributesReply", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for list_ipu_attributes_reply::Attributes {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.attributes.is_empty() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.ListIPUAttributesReply.Attributes", len)?;
        if !self.attributes.is_empty() {
            struct_ser.serialize_field("attributes", &self.attributes)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for list_ipu_attributes_reply::Attributes {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "attributes",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            Attributes,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "attributes" => Ok(GeneratedField::Attributes),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = list_ipu_attributes_reply::Attributes;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.ListIPUAttributesReply.Attributes")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<list_ipu_attributes_reply::Attributes, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut attributes__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::Attributes => {
                            if attributes__.is_some() {
                                return Err(serde::de::Error::duplicate_field("attributes"));
                            }
                            attributes__ = Some(
                                map_.next_value::<std::collections::BTreeMap<_, _>>()?
                            );
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(list_ipu_attributes_reply::Attributes {
                    attributes: attributes__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.ListIPUAttributesReply.Attributes", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for list_ipu_attributes_reply::Entry {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.agent.is_empty() {
            len += 1;
        }
        if !self.ipu_attributes.is_empty() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.ListIPUAttributesReply.Entry", len)?;
        if !self.agent.is_empty() {
            struct_ser.serialize_field("agent", &self.agent)?;
        }
        if !self.ipu_attributes.is_empty() {
            struct_ser.serialize_field("ipuAttributes", &self.ipu_attributes)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for list_ipu_attributes_reply::Entry {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "agent",
            "ipu_attributes",
            "ipuAttributes",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            Agent,
            IpuAttributes,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "agent" => Ok(GeneratedField::Agent),
                            "ipuAttributes" | "ipu_attributes" => Ok(GeneratedField::IpuAttributes),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = list_ipu_attributes_reply::Entry;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.ListIPUAttributesReply.Entry")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<list_ipu_attributes_reply::Entry, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut agent__ = None;
                let mut ipu_attributes__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::Agent => {
                            if agent__.is_some() {
                                return Err(serde::de::Error::duplicate_field("agent"));
                            }
                            agent__ = Some(map_.next_value()?);
                        }
                        GeneratedField::IpuAttributes => {
                            if ipu_attributes__.is_some() {
                                return Err(serde::de::Error::duplicate_field("ipuAttributes"));
                            }
                            ipu_attributes__ = Some(
                                map_.next_value::<std::collections::BTreeMap<::pbjson::private::NumberDeserialize<u32>, _>>()?
                                    .into_iter().map(|(k,v)| (k.0, v)).collect()
                            );
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(list_ipu_attributes_reply::Entry {
                    agent: agent__.unwrap_or_default(),
                    ipu_attributes: ipu_attributes__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.ListIPUAttributesReply.Entry", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for ListIpuAttributesRequest {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.agents.is_empty() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.ListIPUAttributesRequest", len)?;
        if !self.agents.is_empty() {
            struct_ser.serialize_field("agents", &self.agents)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for ListIpuAttributesRequest {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "agents",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            Agents,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "agents" => Ok(GeneratedField::Agents),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = ListIpuAttributesRequest;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.ListIPUAttributesRequest")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<ListIpuAttributesRequest, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut agents__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::Agents => {
                            if agents__.is_some() {
                                return Err(serde::de::Error::duplicate_field("agents"));
                            }
                            agents__ = Some(map_.next_value()?);
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(ListIpuAttributesRequest {
                    agents: agents__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.ListIPUAttributesRequest", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for ListPartitionsReply {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.partitions.is_empty() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.ListPartitionsReply", len)?;
        if !self.partitions.is_empty() {
            struct_ser.serialize_field("partitions", &self.partitions)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for ListPartitionsReply {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "partitions",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            Partitions,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "partitions" => Ok(GeneratedField::Partitions),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = ListPartitionsReply;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.ListPartitionsReply")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<ListPartitionsReply, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut partitions__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::Partitions => {
                            if partitions__.is_some() {
                                return Err(serde::de::Error::duplicate_field("partitions"));
                            }
                            partitions__ = Some(map_.next_value()?);
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(ListPartitionsReply {
                    partitions: partitions__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.ListPartitionsReply", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for ListPartitionsRequest {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.allocation_id.is_empty() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.ListPartitionsRequest", len)?;
        if !self.allocation_id.is_empty() {
            struct_ser.serialize_field("allocationId", &self.allocation_id)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for ListPartitionsRequest {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "allocation_id",
            "allocationId",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            AllocationId,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "allocationId" | "allocation_id" => Ok(GeneratedField::AllocationId),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = ListPartitionsRequest;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.ListPartitionsRequest")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<ListPartitionsRequest, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut allocation_id__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::AllocationId => {
                            if allocation_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("allocationId"));
                            }
                            allocation_id__ = Some(map_.next_value()?);
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(ListPartitionsRequest {
                    allocation_id: allocation_id__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.ListPartitionsRequest", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for Partition {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.id.is_empty() {
            len += 1;
        }
        if self.spec.is_some() {
            len += 1;
        }
        if self.ready_state != 0 {
            len += 1;
        }
        if !self.ipuof_server_version.is_empty() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.Partition", len)?;
        if !self.id.is_empty() {
            struct_ser.serialize_field("id", &self.id)?;
        }
        if let Some(v) = self.spec.as_ref() {
            struct_ser.serialize_field("spec", v)?;
        }
        if self.ready_state != 0 {
            let v = PartitionReadyState::try_from(self.ready_state)
                .map_err(|_| serde::ser::Error::custom(format!("Invalid variant {}", self.ready_state)))?;
            struct_ser.serialize_field("readyState", &v)?;
        }
        if !self.ipuof_server_version.is_empty() {
            struct_ser.serialize_field("ipuofServerVersion", &self.ipuof_server_version)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for Partition {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "id",
            "spec",
            "ready_state",
            "readyState",
            "ipuof_server_version",
            "ipuofServerVersion",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            Id,
            Spec,
            ReadyState,
            IpuofServerVersion,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "id" => Ok(GeneratedField::Id),
                            "spec" => Ok(GeneratedField::Spec),
                            "readyState" | "ready_state" => Ok(GeneratedField::ReadyState),
                            "ipuofServerVersion" | "ipuof_server_version" => Ok(GeneratedField::IpuofServerVersion),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = Partition;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.Partition")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<Partition, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut id__ = None;
                let mut spec__ = None;
                let mut ready_state__ = None;
                let mut ipuof_server_version__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::Id => {
                            if id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("id"));
                            }
                            id__ = Some(map_.next_value()?);
                        }
                        GeneratedField::Spec => {
                            if spec__.is_some() {
                                return Err(serde::de::Error::duplicate_field("spec"));
                            }
                            spec__ = map_.next_value()?;
                        }
                        GeneratedField::ReadyState => {
                            if ready_state__.is_some() {
                                return Err(serde::de::Error::duplicate_field("readyState"));
                            }
                            ready_state__ = Some(map_.next_value::<PartitionReadyState>()? as i32);
                        }
                        GeneratedField::IpuofServerVersion => {
                            if ipuof_server_version__.is_some() {
                                return Err(serde::de::Error::duplicate_field("ipuofServerVersion"));
                            }
                            ipuof_server_version__ = Some(map_.next_value()?);
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(Partition {
                    id: id__.unwrap_or_default(),
                    spec: spec__,
                    ready_state: ready_state__.unwrap_or_default(),
                    ipuof_server_version: ipuof_server_version__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.Partition", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for PartitionConfig {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if self.ipulink_routing_type != 0 {
            len += 1;
        }
        if self.sync_type != 0 {
            len += 1;
        }
        if self.reconfigurable {
            len += 1;
        }
        if self.gw_routing_type != 0 {
            len += 1;
        }
        if self.num_ipulink_segments != 0 {
            len += 1;
        }
        if !self.gcd_configs.is_empty() {
            len += 1;
        }
        if !self.ipuof_server_version.is_empty() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.PartitionConfig", len)?;
        if self.ipulink_routing_type != 0 {
            let v = IpuLinkRoutingType::try_from(self.ipulink_routing_type)
                .map_err(|_| serde::ser::Error::custom(format!("Invalid variant {}", self.ipulink_routing_type)))?;
            struct_ser.serialize_field("ipulinkRoutingType", &v)?;
        }
        if self.sync_type != 0 {
            let v = SyncType::try_from(self.sync_type)
                .map_err(|_| serde::ser::Error::custom(format!("Invalid variant {}", self.sync_type)))?;
            struct_ser.serialize_field("syncType", &v)?;
        }
        if self.reconfigurable {
            struct_ser.serialize_field("reconfigurable", &self.reconfigurable)?;
        }
        if self.gw_routing_type != 0 {
            let v = GatewayRoutingType::try_from(self.gw_routing_type)
                .map_err(|_| serde::ser::Error::custom(format!("Invalid variant {}", self.gw_routing_type)))?;
            struct_ser.serialize_field("gwRoutingType", &v)?;
        }
        if self.num_ipulink_segments != 0 {
            struct_ser.serialize_field("numIpulinkSegments", &self.num_ipulink_segments)?;
        }
        if !self.gcd_configs.is_empty() {
            struct_ser.serialize_field("gcdConfigs", &self.gcd_configs)?;
        }
        if !self.ipuof_server_version.is_empty() {
            struct_ser.serialize_field("ipuofServerVersion", &self.ipuof_server_version)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for PartitionConfig {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "ipulink_routing_type",
            "ipulinkRoutingType",
            "sync_type",
            "syncType",
            "reconfigurable",
            "gw_routing_type",
            "gwRoutingType",
            "num_ipulink_segments",
            "numIpulinkSegments",
            "gcd_configs",
            "gcdConfigs",
            "ipuof_server_version",
            "ipuofServerVersion",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            IpulinkRoutingType,
            SyncType,
            Reconfigurable,
            GwRoutingType,
            NumIpulinkSegments,
            GcdConfigs,
            IpuofServerVersion,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "ipulinkRoutingType" | "ipulink_routing_type" => Ok(GeneratedField::IpulinkRoutingType),
                            "syncType" | "sync_type" => Ok(GeneratedField::SyncType),
                            "reconfigurable" => Ok(GeneratedField::Reconfigurable),
                            "gwRoutingType" | "gw_routing_type" => Ok(GeneratedField::GwRoutingType),
                            "numIpulinkSegments" | "num_ipulink_segments" => Ok(GeneratedField::NumIpulinkSegments),
                            "gcdConfigs" | "gcd_configs" => Ok(GeneratedField::GcdConfigs),
                            "ipuofServerVersion" | "ipuof_server_version" => Ok(GeneratedField::IpuofServerVersion),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = PartitionConfig;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.PartitionConfig")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<PartitionConfig, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut ipulink_routing_type__ = None;
                let mut sync_type__ = None;
                let mut reconfigurable__ = None;
                let mut gw_routing_type__ = None;
                let mut num_ipulink_segments__ = None;
                let mut gcd_configs__ = None;
                let mut ipuof_server_version__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::IpulinkRoutingType => {
                            if ipulink_routing_type__.is_some() {
                                return Err(serde::de::Error::duplicate_field("ipulinkRoutingType"));
                            }
                            ipulink_routing_type__ = Some(map_.next_value::<IpuLinkRoutingType>()? as i32);
                        }
                        GeneratedField::SyncType => {
                            if sync_type__.is_some() {
                                return Err(serde::de::Error::duplicate_field("syncType"));
                            }
                            sync_type__ = Some(map_.next_value::<SyncType>()? as i32);
                        }
                        GeneratedField::Reconfigurable => {
                            if reconfigurable__.is_some() {
                                return Err(serde::de::Error::duplicate_field("reconfigurable"));
                            }
                            reconfigurable__ = Some(map_.next_value()?);
                        }
                        GeneratedField::GwRoutingType => {
                            if gw_routing_type__.is_some() {
                                return Err(serde::de::Error::duplicate_field("gwRoutingType"));
                            }
                            gw_routing_type__ = Some(map_.next_value::<GatewayRoutingType>()? as i32);
                        }
                        GeneratedField::NumIpulinkSegments => {
                            if num_ipulink_segments__.is_some() {
                                return Err(serde::de::Error::duplicate_field("numIpulinkSegments"));
                            }
                            num_ipulink_segments__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::GcdConfigs => {
                            if gcd_configs__.is_some() {
                                return Err(serde::de::Error::duplicate_field("gcdConfigs"));
                            }
                            gcd_configs__ = Some(map_.next_value()?);
                        }
                        GeneratedField::IpuofServerVersion => {
                            if ipuof_server_version__.is_some() {
                                return Err(serde::de::Error::duplicate_field("ipuofServerVersion"));
                            }
                            ipuof_server_version__ = Some(map_.next_value()?);
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(PartitionConfig {
                    ipulink_routing_type: ipulink_routing_type__.unwrap_or_default(),
                    sync_type: sync_type__.unwrap_or_default(),
                    reconfigurable: reconfigurable__.unwrap_or_default(),
                    gw_routing_type: gw_routing_type__.unwrap_or_default(),
                    num_ipulink_segments: num_ipulink_segments__.unwrap_or_default(),
                    gcd_configs: gcd_configs__.unwrap_or_default(),
                    ipuof_server_version: ipuof_server_version__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.PartitionConfig", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for PartitionIpu {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if self.ipulink_domain_topology_id != 0 {
            len += 1;
        }
        if self.ipulink_domain_routing_id != 0 {
            len += 1;
        }
        if self.topology_id != 0 {
            len += 1;
        }
        if self.routing_id != 0 {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.PartitionIpu", len)?;
        if self.ipulink_domain_topology_id != 0 {
            struct_ser.serialize_field("ipulinkDomainTopologyId", &self.ipulink_domain_topology_id)?;
        }
        if self.ipulink_domain_routing_id != 0 {
            struct_ser.serialize_field("ipulinkDomainRoutingId", &self.ipulink_domain_routing_id)?;
        }
        if self.topology_id != 0 {
            struct_ser.serialize_field("topologyId", &self.topology_id)?;
        }
        if self.routing_id != 0 {
            struct_ser.serialize_field("routingId", &self.routing_id)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for PartitionIpu {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "ipulink_domain_topology_id",
            "ipulinkDomainTopologyId",
            "ipulink_domain_routing_id",
            "ipulinkDomainRoutingId",
            "topology_id",
            "topologyId",
            "routing_id",
            "routingId",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            IpulinkDomainTopologyId,
            IpulinkDomainRoutingId,
            TopologyId,
            RoutingId,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "ipulinkDomainTopologyId" | "ipulink_domain_topology_id" => Ok(GeneratedField::IpulinkDomainTopologyId),
                            "ipulinkDomainRoutingId" | "ipulink_domain_routing_id" => Ok(GeneratedField::IpulinkDomainRoutingId),
                            "topologyId" | "topology_id" => Ok(GeneratedField::TopologyId),
                            "routingId" | "routing_id" => Ok(GeneratedField::RoutingId),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = PartitionIpu;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.PartitionIpu")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<PartitionIpu, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut ipulink_domain_topology_id__ = None;
                let mut ipulink_domain_routing_id__ = None;
                let mut topology_id__ = None;
                let mut routing_id__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::IpulinkDomainTopologyId => {
                            if ipulink_domain_topology_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("ipulinkDomainTopologyId"));
                            }
                            ipulink_domain_topology_id__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::IpulinkDomainRoutingId => {
                            if ipulink_domain_routing_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("ipulinkDomainRoutingId"));
                            }
                            ipulink_domain_routing_id__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::TopologyId => {
                            if topology_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("topologyId"));
                            }
                            topology_id__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::RoutingId => {
                            if routing_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("routingId"));
                            }
                            routing_id__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(PartitionIpu {
                    ipulink_domain_topology_id: ipulink_domain_topology_id__.unwrap_or_default(),
                    ipulink_domain_routing_id: ipulink_domain_routing_id__.unwrap_or_default(),
                    topology_id: topology_id__.unwrap_or_default(),
                    routing_id: routing_id__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.PartitionIpu", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for PartitionOperationState {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        let variant = match self {
            Self::PosUndefined => "POS_UNDEFINED",
            Self::PosIdle => "POS_IDLE",
            Self::PosCreating => "POS_CREATING",
            Self::PosRemoving => "POS_REMOVING",
            Self::PosResetting => "POS_RESETTING",
            Self::PosFailed => "POS_FAILED",
        };
        serializer.serialize_str(variant)
    }
}
impl<'de> serde::Deserialize<'de> for PartitionOperationState {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "POS_UNDEFINED",
            "POS_IDLE",
            "POS_CREATING",
            "POS_REMOVING",
            "POS_RESETTING",
            "POS_FAILED",
        ];

        struct GeneratedVisitor;

        impl serde::de::Visitor<'_> for GeneratedVisitor {
            type Value = PartitionOperationState;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(formatter, "expected one of: {:?}", &FIELDS)
            }

            fn visit_i64<E>(self, v: i64) -> std::result::Result<Self::Value, E>
            where
                E: serde::de::Error,
            {
                i32::try_from(v)
                    .ok()
                    .and_then(|x| x.try_into().ok())
                    .ok_or_else(|| {
                        serde::de::Error::invalid_value(serde::de::Unexpected::Signed(v), &self)
                    })
            }

            fn visit_u64<E>(self, v: u64) -> std::result::Result<Self::Value, E>
            where
                E: serde::de::Error,
            {
                i32::try_from(v)
                    .ok()
                    .and_then(|x| x.try_into().ok())
                    .ok_or_else(|| {
                        serde::de::Error::invalid_value(serde::de::Unexpected::Unsigned(v), &self)
                    })
            }

            fn visit_str<E>(self, value: &str) -> std::result::Result<Self::Value, E>
            where
                E: serde::de::Error,
            {
                match value {
                    "POS_UNDEFINED" => Ok(PartitionOperationState::PosUndefined),
                    "POS_IDLE" => Ok(PartitionOperationState::PosIdle),
                    "POS_CREATING" => Ok(PartitionOperationState::PosCreating),
                    "POS_REMOVING" => Ok(PartitionOperationState::PosRemoving),
                    "POS_RESETTING" => Ok(PartitionOperationState::PosResetting),
                    "POS_FAILED" => Ok(PartitionOperationState::PosFailed),
                    _ => Err(serde::de::Error::unknown_variant(value, FIELDS)),
                }
            }
        }
        deserializer.deserialize_any(GeneratedVisitor)
    }
}
impl serde::Serialize for PartitionReadyState {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        let variant = match self {
            Self::PsUndefined => "PS_UNDEFINED",
            Self::PsPending => "PS_PENDING",
            Self::PsActive => "PS_ACTIVE",
            Self::PsRemoved => "PS_REMOVED",
            Self::PsError => "PS_ERROR",
        };
        serializer.serialize_str(variant)
    }
}
impl<'de> serde::Deserialize<'de> for PartitionReadyState {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "PS_UNDEFINED",
            "PS_PENDING",
            "PS_ACTIVE",
            "PS_REMOVED",
            "PS_ERROR",
        ];

        struct GeneratedVisitor;

        impl serde::de::Visitor<'_> for GeneratedVisitor {
            type Value = PartitionReadyState;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(formatter, "expected one of: {:?}", &FIELDS)
            }

            fn visit_i64<E>(self, v: i64) -> std::result::Result<Self::Value, E>
            where
                E: serde::de::Error,
            {
                i32::try_from(v)
                    .ok()
                    .and_then(|x| x.try_into().ok())
                    .ok_or_else(|| {
                        serde::de::Error::invalid_value(serde::de::Unexpected::Signed(v), &self)
                    })
            }

            fn visit_u64<E>(self, v: u64) -> std::result::Result<Self::Value, E>
            where
                E: serde::de::Error,
            {
                i32::try_from(v)
                    .ok()
                    .and_then(|x| x.try_into().ok())
                    .ok_or_else(|| {
                        serde::de::Error::invalid_value(serde::de::Unexpected::Unsigned(v), &self)
                    })
            }

            fn visit_str<E>(self, value: &str) -> std::result::Result<Self::Value, E>
            where
                E: serde::de::Error,
            {
                match value {
                    "PS_UNDEFINED" => Ok(PartitionReadyState::PsUndefined),
                    "PS_PENDING" => Ok(PartitionReadyState::PsPending),
                    "PS_ACTIVE" => Ok(PartitionReadyState::PsActive),
                    "PS_REMOVED" => Ok(PartitionReadyState::PsRemoved),
                    "PS_ERROR" => Ok(PartitionReadyState::PsError),
                    _ => Err(serde::de::Error::unknown_variant(value, FIELDS)),
                }
            }
        }
        deserializer.deserialize_any(GeneratedVisitor)
    }
}
impl serde::Serialize for PartitionRequirements {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.id.is_empty() {
            len += 1;
        }
        if self.size != 0 {
            len += 1;
        }
        if !self.cluster_id.is_empty() {
            len += 1;
        }
        if self.ipulink_routing_type != 0 {
            len += 1;
        }
        if self.num_ipulink_segments != 0 {
            len += 1;
        }
        if self.gw_routing_type != 0 {
            len += 1;
        }
        if self.sync_type != 0 {
            len += 1;
        }
        if self.num_gcds != 0 {
            len += 1;
        }
        if self.reconfigurable {
            len += 1;
        }
        if self.num_replicas != 0 {
            len += 1;
        }
        if !self.allocation_id.is_empty() {
            len += 1;
        }
        if !self.ipus.is_empty() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.PartitionRequirements", len)?;
        if !self.id.is_empty() {
            struct_ser.serialize_field("id", &self.id)?;
        }
        if self.size != 0 {
            struct_ser.serialize_field("size", &self.size)?;
        }
        if !self.cluster_id.is_empty() {
            struct_ser.serialize_field("clusterId", &self.cluster_id)?;
        }
        if self.ipulink_routing_type != 0 {
            let v = IpuLinkRoutingType::try_from(self.ipulink_routing_type)
                .map_err(|_| serde::ser::Error::custom(format!("Invalid variant {}", self.ipulink_routing_type)))?;
            struct_ser.serialize_field("ipulinkRoutingType", &v)?;
        }
        if self.num_ipulink_segments != 0 {
            struct_ser.serialize_field("numIpulinkSegments", &self.num_ipulink_segments)?;
        }
        if self.gw_routing_type != 0 {
            let v = GatewayRoutingType::try_from(self.gw_routing_type)
                .map_err(|_| serde::ser::Error::custom(format!("Invalid variant {}", self.gw_routing_type)))?;
            struct_ser.serialize_field("gwRoutingType", &v)?;
        }
        if self.sync_type != 0 {
            let v = SyncType::try_from(self.sync_type)
                .map_err(|_| serde::ser::Error::custom(format!("Invalid variant {}", self.sync_type)))?;
            struct_ser.serialize_field("syncType", &v)?;
        }
        if self.num_gcds != 0 {
            struct_ser.serialize_field("numGcds", &self.num_gcds)?;
        }
        if self.reconfigurable {
            struct_ser.serialize_field("reconfigurable", &self.reconfigurable)?;
        }
        if self.num_replicas != 0 {
            struct_ser.serialize_field("numReplicas", &self.num_replicas)?;
        }
        if !self.allocation_id.is_empty() {
            struct_ser.serialize_field("allocationId", &self.allocation_id)?;
        }
        if !self.ipus.is_empty() {
            struct_ser.serialize_field("ipus", &self.ipus)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for PartitionRequirements {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "id",
            "size",
            "cluster_id",
            "clusterId",
            "ipulink_routing_type",
            "ipulinkRoutingType",
            "num_ipulink_segments",
            "numIpulinkSegments",
            "gw_routing_type",
            "gwRoutingType",
            "sync_type",
            "syncType",
            "num_gcds",
            "numGcds",
            "reconfigurable",
            "num_replicas",
            "numReplicas",
            "allocation_id",
            "allocationId",
            "ipus",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            Id,
            Size,
            ClusterId,
            IpulinkRoutingType,
            NumIpulinkSegments,
            GwRoutingType,
            SyncType,
            NumGcds,
            Reconfigurable,
            NumReplicas,
            AllocationId,
            Ipus,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "id" => Ok(GeneratedField::Id),
                            "size" => Ok(GeneratedField::Size),
                            "clusterId" | "cluster_id" => Ok(GeneratedField::ClusterId),
                            "ipulinkRoutingType" | "ipulink_routing_type" => Ok(GeneratedField::IpulinkRoutingType),
                            "numIpulinkSegments" | "num_ipulink_segments" => Ok(GeneratedField::NumIpulinkSegments),
                            "gwRoutingType" | "gw_routing_type" => Ok(GeneratedField::GwRoutingType),
                            "syncType" | "sync_type" => Ok(GeneratedField::SyncType),
                            "numGcds" | "num_gcds" => Ok(GeneratedField::NumGcds),
                            "reconfigurable" => Ok(GeneratedField::Reconfigurable),
                            "numReplicas" | "num_replicas" => Ok(GeneratedField::NumReplicas),
                            "allocationId" | "allocation_id" => Ok(GeneratedField::AllocationId),
                            "ipus" => Ok(GeneratedField::Ipus),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = PartitionRequirements;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.PartitionRequirements")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<PartitionRequirements, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut id__ = None;
                let mut size__ = None;
                let mut cluster_id__ = None;
                let mut ipulink_routing_type__ = None;
                let mut num_ipulink_segments__ = None;
                let mut gw_routing_type__ = None;
                let mut sync_type__ = None;
                let mut num_gcds__ = None;
                let mut reconfigurable__ = None;
                let mut num_replicas__ = None;
                let mut allocation_id__ = None;
                let mut ipus__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::Id => {
                            if id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("id"));
                            }
                            id__ = Some(map_.next_value()?);
                        }
                        GeneratedField::Size => {
                            if size__.is_some() {
                                return Err(serde::de::Error::duplicate_field("size"));
                            }
                            size__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::ClusterId => {
                            if cluster_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("clusterId"));
                            }
                            cluster_id__ = Some(map_.next_value()?);
                        }
                        GeneratedField::IpulinkRoutingType => {
                            if ipulink_routing_type__.is_some() {
                                return Err(serde::de::Error::duplicate_field("ipulinkRoutingType"));
                            }
                            ipulink_routing_type__ = Some(map_.next_value::<IpuLinkRoutingType>()? as i32);
                        }
                        GeneratedField::NumIpulinkSegments => {
                            if num_ipulink_segments__.is_some() {
                                return Err(serde::de::Error::duplicate_field("numIpulinkSegments"));
                            }
                            num_ipulink_segments__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::GwRoutingType => {
                            if gw_routing_type__.is_some() {
                                return Err(serde::de::Error::duplicate_field("gwRoutingType"));
                            }
                            gw_routing_type__ = Some(map_.next_value::<GatewayRoutingType>()? as i32);
                        }
                        GeneratedField::SyncType => {
                            if sync_type__.is_some() {
                                return Err(serde::de::Error::duplicate_field("syncType"));
                            }
                            sync_type__ = Some(map_.next_value::<SyncType>()? as i32);
                        }
                        GeneratedField::NumGcds => {
                            if num_gcds__.is_some() {
                                return Err(serde::de::Error::duplicate_field("numGcds"));
                            }
                            num_gcds__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::Reconfigurable => {
                            if reconfigurable__.is_some() {
                                return Err(serde::de::Error::duplicate_field("reconfigurable"));
                            }
                            reconfigurable__ = Some(map_.next_value()?);
                        }
                        GeneratedField::NumReplicas => {
                            if num_replicas__.is_some() {
                                return Err(serde::de::Error::duplicate_field("numReplicas"));
                            }
                            num_replicas__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::AllocationId => {
                            if allocation_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("allocationId"));
                            }
                            allocation_id__ = Some(map_.next_value()?);
                        }
                        GeneratedField::Ipus => {
                            if ipus__.is_some() {
                                return Err(serde::de::Error::duplicate_field("ipus"));
                            }
                            ipus__ = Some(map_.next_value()?);
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(PartitionRequirements {
                    id: id__.unwrap_or_default(),
                    size: size__.unwrap_or_default(),
                    cluster_id: cluster_id__.unwrap_or_default(),
                    ipulink_routing_type: ipulink_routing_type__.unwrap_or_default(),
                    num_ipulink_segments: num_ipulink_segments__.unwrap_or_default(),
                    gw_routing_type: gw_routing_type__.unwrap_or_default(),
                    sync_type: sync_type__.unwrap_or_default(),
                    num_gcds: num_gcds__.unwrap_or_default(),
                    reconfigurable: reconfigurable__.unwrap_or_default(),
                    num_replicas: num_replicas__.unwrap_or_default(),
                    allocation_id: allocation_id__.unwrap_or_default(),
                    ipus: ipus__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.PartitionRequirements", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for PartitionSpec {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.cluster_id.is_empty() {
            len += 1;
        }
        if !self.ipus.is_empty() {
            len += 1;
        }
        if self.ipulink_routing_type != 0 {
            len += 1;
        }
        if self.sync_type != 0 {
            len += 1;
        }
        if self.num_gcds != 0 {
            len += 1;
        }
        if self.num_ipulink_segments != 0 {
            len += 1;
        }
        if self.reconfigurable {
            len += 1;
        }
        if self.gw_routing_type != 0 {
            len += 1;
        }
        if self.num_replicas != 0 {
            len += 1;
        }
        if !self.allocation_id.is_empty() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.PartitionSpec", len)?;
        if !self.cluster_id.is_empty() {
            struct_ser.serialize_field("clusterId", &self.cluster_id)?;
        }
        if !self.ipus.is_empty() {
            struct_ser.serialize_field("ipus", &self.ipus)?;
        }
        if self.ipulink_routing_type != 0 {
            let v = IpuLinkRoutingType::try_from(self.ipulink_routing_type)
                .map_err(|_| serde::ser::Error::custom(format!("Invalid variant {}", self.ipulink_routing_type)))?;
            struct_ser.serialize_field("ipulinkRoutingType", &v)?;
        }
        if self.sync_type != 0 {
            let v = SyncType::try_from(self.sync_type)
                .map_err(|_| serde::ser::Error::custom(format!("Invalid variant {}", self.sync_type)))?;
            struct_ser.serialize_field("syncType", &v)?;
        }
        if self.num_gcds != 0 {
            struct_ser.serialize_field("numGcds", &self.num_gcds)?;
        }
        if self.num_ipulink_segments != 0 {
            struct_ser.serialize_field("numIpulinkSegments", &self.num_ipulink_segments)?;
        }
        if self.reconfigurable {
            struct_ser.serialize_field("reconfigurable", &self.reconfigurable)?;
        }
        if self.gw_routing_type != 0 {
            let v = GatewayRoutingType::try_from(self.gw_routing_type)
                .map_err(|_| serde::ser::Error::custom(format!("Invalid variant {}", self.gw_routing_type)))?;
            struct_ser.serialize_field("gwRoutingType", &v)?;
        }
        if self.num_replicas != 0 {
            struct_ser.serialize_field("numReplicas", &self.num_replicas)?;
        }
        if !self.allocation_id.is_empty() {
            struct_ser.serialize_field("allocationId", &self.allocation_id)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for PartitionSpec {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "cluster_id",
            "clusterId",
            "ipus",
            "ipulink_routing_type",
            "ipulinkRoutingType",
            "sync_type",
            "syncType",
            "num_gcds",
            "numGcds",
            "num_ipulink_segments",
            "numIpulinkSegments",
            "reconfigurable",
            "gw_routing_type",
            "gwRoutingType",
            "num_replicas",
            "numReplicas",
            "allocation_id",
            "allocationId",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            ClusterId,
            Ipus,
            IpulinkRoutingType,
            SyncType,
            NumGcds,
            NumIpulinkSegments,
            Reconfigurable,
            GwRoutingType,
            NumReplicas,
            AllocationId,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "clusterId" | "cluster_id" => Ok(GeneratedField::ClusterId),
                            "ipus" => Ok(GeneratedField::Ipus),
                            "ipulinkRoutingType" | "ipulink_routing_type" => Ok(GeneratedField::IpulinkRoutingType),
                            "syncType" | "sync_type" => Ok(GeneratedField::SyncType),
                            "numGcds" | "num_gcds" => Ok(GeneratedField::NumGcds),
                            "numIpulinkSegments" | "num_ipulink_segments" => Ok(GeneratedField::NumIpulinkSegments),
                            "reconfigurable" => Ok(GeneratedField::Reconfigurable),
                            "gwRoutingType" | "gw_routing_type" => Ok(GeneratedField::GwRoutingType),
                            "numReplicas" | "num_replicas" => Ok(GeneratedField::NumReplicas),
                            "allocationId" | "allocation_id" => Ok(GeneratedField::AllocationId),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = PartitionSpec;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.PartitionSpec")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<PartitionSpec, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut cluster_id__ = None;
                let mut ipus__ = None;
                let mut ipulink_routing_type__ = None;
                let mut sync_type__ = None;
                let mut num_gcds__ = None;
                let mut num_ipulink_segments__ = None;
                let mut reconfigurable__ = None;
                let mut gw_routing_type__ = None;
                let mut num_replicas__ = None;
                let mut allocation_id__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::ClusterId => {
                            if cluster_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("clusterId"));
                            }
                            cluster_id__ = Some(map_.next_value()?);
                        }
                        GeneratedField::Ipus => {
                            if ipus__.is_some() {
                                return Err(serde::de::Error::duplicate_field("ipus"));
                            }
                            ipus__ = Some(map_.next_value()?);
                        }
                        GeneratedField::IpulinkRoutingType => {
                            if ipulink_routing_type__.is_some() {
                                return Err(serde::de::Error::duplicate_field("ipulinkRoutingType"));
                            }
                            ipulink_routing_type__ = Some(map_.next_value::<IpuLinkRoutingType>()? as i32);
                        }
                        GeneratedField::SyncType => {
                            if sync_type__.is_some() {
                                return Err(serde::de::Error::duplicate_field("syncType"));
                            }
                            sync_type__ = Some(map_.next_value::<SyncType>()? as i32);
                        }
                        GeneratedField::NumGcds => {
                            if num_gcds__.is_some() {
                                return Err(serde::de::Error::duplicate_field("numGcds"));
                            }
                            num_gcds__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::NumIpulinkSegments => {
                            if num_ipulink_segments__.is_some() {
                                return Err(serde::de::Error::duplicate_field("numIpulinkSegments"));
                            }
                            num_ipulink_segments__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::Reconfigurable => {
                            if reconfigurable__.is_some() {
                                return Err(serde::de::Error::duplicate_field("reconfigurable"));
                            }
                            reconfigurable__ = Some(map_.next_value()?);
                        }
                        GeneratedField::GwRoutingType => {
                            if gw_routing_type__.is_some() {
                                return Err(serde::de::Error::duplicate_field("gwRoutingType"));
                            }
                            gw_routing_type__ = Some(map_.next_value::<GatewayRoutingType>()? as i32);
                        }
                        GeneratedField::NumReplicas => {
                            if num_replicas__.is_some() {
                                return Err(serde::de::Error::duplicate_field("numReplicas"));
                            }
                            num_replicas__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::AllocationId => {
                            if allocation_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("allocationId"));
                            }
                            allocation_id__ = Some(map_.next_value()?);
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(PartitionSpec {
                    cluster_id: cluster_id__.unwrap_or_default(),
                    ipus: ipus__.unwrap_or_default(),
                    ipulink_routing_type: ipulink_routing_type__.unwrap_or_default(),
                    sync_type: sync_type__.unwrap_or_default(),
                    num_gcds: num_gcds__.unwrap_or_default(),
                    num_ipulink_segments: num_ipulink_segments__.unwrap_or_default(),
                    reconfigurable: reconfigurable__.unwrap_or_default(),
                    gw_routing_type: gw_routing_type__.unwrap_or_default(),
                    num_replicas: num_replicas__.unwrap_or_default(),
                    allocation_id: allocation_id__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.PartitionSpec", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for PartitionStatus {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.partition_id.is_empty() {
            len += 1;
        }
        if self.ready_state != 0 {
            len += 1;
        }
        if self.operation_state != 0 {
            len += 1;
        }
        if !self.errors.is_empty() {
            len += 1;
        }
        if self.max_auto_reset_retries != 0 {
            len += 1;
        }
        if self.auto_reset_retry_count != 0 {
            len += 1;
        }
        if self.last_auto_reset_time.is_some() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.PartitionStatus", len)?;
        if !self.partition_id.is_empty() {
            struct_ser.serialize_field("partitionId", &self.partition_id)?;
        }
        if self.ready_state != 0 {
            let v = PartitionReadyState::try_from(self.ready_state)
                .map_err(|_| serde::ser::Error::custom(format!("Invalid variant {}", self.ready_state)))?;
            struct_ser.serialize_field("readyState", &v)?;
        }
        if self.operation_state != 0 {
            let v = PartitionOperationState::try_from(self.operation_state)
                .map_err(|_| serde::ser::Error::custom(format!("Invalid variant {}", self.operation_state)))?;
            struct_ser.serialize_field("operationState", &v)?;
        }
        if !self.errors.is_empty() {
            struct_ser.serialize_field("errors", &self.errors)?;
        }
        if self.max_auto_reset_retries != 0 {
            struct_ser.serialize_field("maxAutoResetRetries", &self.max_auto_reset_retries)?;
        }
        if self.auto_reset_retry_count != 0 {
            struct_ser.serialize_field("autoResetRetryCount", &self.auto_reset_retry_count)?;
        }
        if let Some(v) = self.last_auto_reset_time.as_ref() {
            struct_ser.serialize_field("lastAutoResetTime", v)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for PartitionStatus {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "partition_id",
            "partitionId",
            "ready_state",
            "readyState",
            "operation_state",
            "operationState",
            "errors",
            "max_auto_reset_retries",
            "maxAutoResetRetries",
            "auto_reset_retry_count",
            "autoResetRetryCount",
            "last_auto_reset_time",
            "lastAutoResetTime",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            PartitionId,
            ReadyState,
            OperationState,
            Errors,
            MaxAutoResetRetries,
            AutoResetRetryCount,
            LastAutoResetTime,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "partitionId" | "partition_id" => Ok(GeneratedField::PartitionId),
                            "readyState" | "ready_state" => Ok(GeneratedField::ReadyState),
                            "operationState" | "operation_state" => Ok(GeneratedField::OperationState),
                            "errors" => Ok(GeneratedField::Errors),
                            "maxAutoResetRetries" | "max_auto_reset_retries" => Ok(GeneratedField::MaxAutoResetRetries),
                            "autoResetRetryCount" | "auto_reset_retry_count" => Ok(GeneratedField::AutoResetRetryCount),
                            "lastAutoResetTime" | "last_auto_reset_time" => Ok(GeneratedField::LastAutoResetTime),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = PartitionStatus;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.PartitionStatus")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<PartitionStatus, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut partition_id__ = None;
                let mut ready_state__ = None;
                let mut operation_state__ = None;
                let mut errors__ = None;
                let mut max_auto_reset_retries__ = None;
                let mut auto_reset_retry_count__ = None;
                let mut last_auto_reset_time__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::PartitionId => {
                            if partition_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("partitionId"));
                            }
                            partition_id__ = Some(map_.next_value()?);
                        }
                        GeneratedField::ReadyState => {
                            if ready_state__.is_some() {
                                return Err(serde::de::Error::duplicate_field("readyState"));
                            }
                            ready_state__ = Some(map_.next_value::<PartitionReadyState>()? as i32);
                        }
                        GeneratedField::OperationState => {
                            if operation_state__.is_some() {
                                return Err(serde::de::Error::duplicate_field("operationState"));
                            }
                            operation_state__ = Some(map_.next_value::<PartitionOperationState>()? as i32);
                        }
                        GeneratedField::Errors => {
                            if errors__.is_some() {
                                return Err(serde::de::Error::duplicate_field("errors"));
                            }
                            errors__ = Some(map_.next_value()?);
                        }
                        GeneratedField::MaxAutoResetRetries => {
                            if max_auto_reset_retries__.is_some() {
                                return Err(serde::de::Error::duplicate_field("maxAutoResetRetries"));
                            }
                            max_auto_reset_retries__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::AutoResetRetryCount => {
                            if auto_reset_retry_count__.is_some() {
                                return Err(serde::de::Error::duplicate_field("autoResetRetryCount"));
                            }
                            auto_reset_retry_count__ = 
                                Some(map_.next_value::<::pbjson::private::NumberDeserialize<_>>()?.0)
                            ;
                        }
                        GeneratedField::LastAutoResetTime => {
                            if last_auto_reset_time__.is_some() {
                                return Err(serde::de::Error::duplicate_field("lastAutoResetTime"));
                            }
                            last_auto_reset_time__ = map_.next_value()?;
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(PartitionStatus {
                    partition_id: partition_id__.unwrap_or_default(),
                    ready_state: ready_state__.unwrap_or_default(),
                    operation_state: operation_state__.unwrap_or_default(),
                    errors: errors__.unwrap_or_default(),
                    max_auto_reset_retries: max_auto_reset_retries__.unwrap_or_default(),
                    auto_reset_retry_count: auto_reset_retry_count__.unwrap_or_default(),
                    last_auto_reset_time: last_auto_reset_time__,
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.PartitionStatus", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for RemovePartitionReply {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let len = 0;
        let struct_ser = serializer.serialize_struct("virmgrpc.RemovePartitionReply", len)?;
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for RemovePartitionReply {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                            Ok(GeneratedField::__SkipField__)
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = RemovePartitionReply;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.RemovePartitionReply")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<RemovePartitionReply, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                while map_.next_key::<GeneratedField>()?.is_some() {
                    let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                }
                Ok(RemovePartitionReply {
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.RemovePartitionReply", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for RemovePartitionRequest {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.partition_id.is_empty() {
            len += 1;
        }
        if self.force {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.RemovePartitionRequest", len)?;
        if !self.partition_id.is_empty() {
            struct_ser.serialize_field("partitionId", &self.partition_id)?;
        }
        if self.force {
            struct_ser.serialize_field("force", &self.force)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for RemovePartitionRequest {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "partition_id",
            "partitionId",
            "force",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            PartitionId,
            Force,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "partitionId" | "partition_id" => Ok(GeneratedField::PartitionId),
                            "force" => Ok(GeneratedField::Force),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = RemovePartitionRequest;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.RemovePartitionRequest")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<RemovePartitionRequest, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut partition_id__ = None;
                let mut force__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::PartitionId => {
                            if partition_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("partitionId"));
                            }
                            partition_id__ = Some(map_.next_value()?);
                        }
                        GeneratedField::Force => {
                            if force__.is_some() {
                                return Err(serde::de::Error::duplicate_field("force"));
                            }
                            force__ = Some(map_.next_value()?);
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(RemovePartitionRequest {
                    partition_id: partition_id__.unwrap_or_default(),
                    force: force__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.RemovePartitionRequest", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for ResetPartitionReply {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let len = 0;
        let struct_ser = serializer.serialize_struct("virmgrpc.ResetPartitionReply", len)?;
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for ResetPartitionReply {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                            Ok(GeneratedField::__SkipField__)
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = ResetPartitionReply;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.ResetPartitionReply")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<ResetPartitionReply, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                while map_.next_key::<GeneratedField>()?.is_some() {
                    let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                }
                Ok(ResetPartitionReply {
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.ResetPartitionReply", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for ResetPartitionRequest {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.partition_id.is_empty() {
            len += 1;
        }
        if self.relocatable {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.ResetPartitionRequest", len)?;
        if !self.partition_id.is_empty() {
            struct_ser.serialize_field("partitionId", &self.partition_id)?;
        }
        if self.relocatable {
            struct_ser.serialize_field("relocatable", &self.relocatable)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for ResetPartitionRequest {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "partition_id",
            "partitionId",
            "relocatable",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            PartitionId,
            Relocatable,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "partitionId" | "partition_id" => Ok(GeneratedField::PartitionId),
                            "relocatable" => Ok(GeneratedField::Relocatable),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = ResetPartitionRequest;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.ResetPartitionRequest")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<ResetPartitionRequest, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut partition_id__ = None;
                let mut relocatable__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::PartitionId => {
                            if partition_id__.is_some() {
                                return Err(serde::de::Error::duplicate_field("partitionId"));
                            }
                            partition_id__ = Some(map_.next_value()?);
                        }
                        GeneratedField::Relocatable => {
                            if relocatable__.is_some() {
                                return Err(serde::de::Error::duplicate_field("relocatable"));
                            }
                            relocatable__ = Some(map_.next_value()?);
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(ResetPartitionRequest {
                    partition_id: partition_id__.unwrap_or_default(),
                    relocatable: relocatable__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.ResetPartitionRequest", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for SyncType {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        let variant = match self {
            Self::StUndefined => "ST_UNDEFINED",
            Self::StGs2Default => "ST_GS2_DEFAULT",
            Self::StGs2IndependentRails => "ST_GS2_INDEPENDENT_RAILS",
            Self::StPodNativeDefault => "ST_POD_NATIVE_DEFAULT",
            Self::StPodNativeReplicatedPipeline => "ST_POD_NATIVE_REPLICATED_PIPELINE",
        };
        serializer.serialize_str(variant)
    }
}
impl<'de> serde::Deserialize<'de> for SyncType {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "ST_UNDEFINED",
            "ST_GS2_DEFAULT",
            "ST_GS2_INDEPENDENT_RAILS",
            "ST_POD_NATIVE_DEFAULT",
            "ST_POD_NATIVE_REPLICATED_PIPELINE",
        ];

        struct GeneratedVisitor;

        impl serde::de::Visitor<'_> for GeneratedVisitor {
            type Value = SyncType;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(formatter, "expected one of: {:?}", &FIELDS)
            }

            fn visit_i64<E>(self, v: i64) -> std::result::Result<Self::Value, E>
            where
                E: serde::de::Error,
            {
                i32::try_from(v)
                    .ok()
                    .and_then(|x| x.try_into().ok())
                    .ok_or_else(|| {
                        serde::de::Error::invalid_value(serde::de::Unexpected::Signed(v), &self)
                    })
            }

            fn visit_u64<E>(self, v: u64) -> std::result::Result<Self::Value, E>
            where
                E: serde::de::Error,
            {
                i32::try_from(v)
                    .ok()
                    .and_then(|x| x.try_into().ok())
                    .ok_or_else(|| {
                        serde::de::Error::invalid_value(serde::de::Unexpected::Unsigned(v), &self)
                    })
            }

            fn visit_str<E>(self, value: &str) -> std::result::Result<Self::Value, E>
            where
                E: serde::de::Error,
            {
                match value {
                    "ST_UNDEFINED" => Ok(SyncType::StUndefined),
                    "ST_GS2_DEFAULT" => Ok(SyncType::StGs2Default),
                    "ST_GS2_INDEPENDENT_RAILS" => Ok(SyncType::StGs2IndependentRails),
                    "ST_POD_NATIVE_DEFAULT" => Ok(SyncType::StPodNativeDefault),
                    "ST_POD_NATIVE_REPLICATED_PIPELINE" => Ok(SyncType::StPodNativeReplicatedPipeline),
                    _ => Err(serde::de::Error::unknown_variant(value, FIELDS)),
                }
            }
        }
        deserializer.deserialize_any(GeneratedVisitor)
    }
}
impl serde::Serialize for VersionReply {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let mut len = 0;
        if !self.version.is_empty() {
            len += 1;
        }
        let mut struct_ser = serializer.serialize_struct("virmgrpc.VersionReply", len)?;
        if !self.version.is_empty() {
            struct_ser.serialize_field("version", &self.version)?;
        }
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for VersionReply {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
            "version",
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            Version,
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                        match value {
                            "version" => Ok(GeneratedField::Version),
                            _ => Ok(GeneratedField::__SkipField__),
                        }
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = VersionReply;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.VersionReply")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<VersionReply, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                let mut version__ = None;
                while let Some(k) = map_.next_key()? {
                    match k {
                        GeneratedField::Version => {
                            if version__.is_some() {
                                return Err(serde::de::Error::duplicate_field("version"));
                            }
                            version__ = Some(map_.next_value()?);
                        }
                        GeneratedField::__SkipField__ => {
                            let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(VersionReply {
                    version: version__.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.VersionReply", FIELDS, GeneratedVisitor)
    }
}
impl serde::Serialize for VersionRequest {
    #[allow(deprecated)]
    fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::SerializeStruct;
        let len = 0;
        let struct_ser = serializer.serialize_struct("virmgrpc.VersionRequest", len)?;
        struct_ser.end()
    }
}
impl<'de> serde::Deserialize<'de> for VersionRequest {
    #[allow(deprecated)]
    fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        const FIELDS: &[&str] = &[
        ];

        #[allow(clippy::enum_variant_names)]
        enum GeneratedField {
            __SkipField__,
        }
        impl<'de> serde::Deserialize<'de> for GeneratedField {
            fn deserialize<D>(deserializer: D) -> std::result::Result<GeneratedField, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                struct GeneratedVisitor;

                impl serde::de::Visitor<'_> for GeneratedVisitor {
                    type Value = GeneratedField;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(formatter, "expected one of: {:?}", &FIELDS)
                    }

                    #[allow(unused_variables)]
                    fn visit_str<E>(self, value: &str) -> std::result::Result<GeneratedField, E>
                    where
                        E: serde::de::Error,
                    {
                            Ok(GeneratedField::__SkipField__)
                    }
                }
                deserializer.deserialize_identifier(GeneratedVisitor)
            }
        }
        struct GeneratedVisitor;
        impl<'de> serde::de::Visitor<'de> for GeneratedVisitor {
            type Value = VersionRequest;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("struct virmgrpc.VersionRequest")
            }

            fn visit_map<V>(self, mut map_: V) -> std::result::Result<VersionRequest, V::Error>
                where
                    V: serde::de::MapAccess<'de>,
            {
                while map_.next_key::<GeneratedField>()?.is_some() {
                    let _ = map_.next_value::<serde::de::IgnoredAny>()?;
                }
                Ok(VersionRequest {
                })
            }
        }
        deserializer.deserialize_struct("virmgrpc.VersionRequest", FIELDS, GeneratedVisitor)
    }
}
