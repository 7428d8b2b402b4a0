//! The gRPC API: the generated service traits over [`Api`].

use ipu_vipu_client::wire;
use ipu_vipu_client::wire::user_service_server::UserService;
use ipu_vipu_client::wire::version_service_server::VersionService;
use tonic::{Request, Response, Status, async_trait};

use crate::api::Api;

#[async_trait]
impl VersionService for Api {
    async fn get_version(
        &self,
        _: Request<wire::VersionRequest>,
    ) -> Result<Response<wire::VersionReply>, Status> {
        Ok(Response::new(self.version()))
    }
}

#[async_trait]
impl UserService for Api {
    async fn list_partitions(
        &self,
        request: Request<wire::ListPartitionsRequest>,
    ) -> Result<Response<wire::ListPartitionsReply>, Status> {
        Ok(Response::new(self.list(request.into_inner()).await?))
    }

    async fn list_ipu_attributes(
        &self,
        request: Request<wire::ListIpuAttributesRequest>,
    ) -> Result<Response<wire::ListIpuAttributesReply>, Status> {
        Ok(Response::new(self.attributes(request.into_inner()).await?))
    }

    async fn create_partition(
        &self,
        request: Request<wire::CreatePartitionRequest>,
    ) -> Result<Response<wire::CreatePartitionReply>, Status> {
        Ok(Response::new(self.create(request.into_inner()).await?))
    }

    async fn remove_partition(
        &self,
        request: Request<wire::RemovePartitionRequest>,
    ) -> Result<Response<wire::RemovePartitionReply>, Status> {
        Ok(Response::new(self.remove(request.into_inner()).await?))
    }

    async fn reset_partition(
        &self,
        request: Request<wire::ResetPartitionRequest>,
    ) -> Result<Response<wire::ResetPartitionReply>, Status> {
        Ok(Response::new(self.reset(request.into_inner()).await?))
    }

    async fn get_partition_ipuof_config(
        &self,
        request: Request<wire::GetPartitionIpuofConfigRequest>,
    ) -> Result<Response<wire::GetPartitionIpuofConfigReply>, Status> {
        Ok(Response::new(self.ipuof_config(request.into_inner()).await?))
    }

    async fn get_partition_status(
        &self,
        request: Request<wire::GetPartitionStatusRequest>,
    ) -> Result<Response<wire::GetPartitionStatusReply>, Status> {
        Ok(Response::new(self.status(request.into_inner()).await?))
    }
}
