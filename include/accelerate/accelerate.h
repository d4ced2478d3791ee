#pragma once

// Includes everything but what only some programs need: datasets that are read
// from files (datasets.h), batches of token sequences (token_collate.h), and
// safetensors files (safetensors.h, a separate library without LibTorch).

#include <accelerate/accelerator.h>
#include <accelerate/accelerator_options.h>
#include <accelerate/activation_checkpointing.h>
#include <accelerate/bucket_hook.h>
#include <accelerate/checkpoint.h>
#include <accelerate/collate.h>
#include <accelerate/data_loader.h>
#include <accelerate/data_loader_configuration.h>
#include <accelerate/data_loader_options.h>
#include <accelerate/deepspeed.h>
#include <accelerate/deepspeed_training.h>
#include <accelerate/distributed_type.h>
#include <accelerate/dynamo.h>
#include <accelerate/empty_weights.h>
#include <accelerate/environment.h>
#include <accelerate/error.h>
#include <accelerate/full_parameters.h>
#include <accelerate/fully_sharded.h>
#include <accelerate/grad_scaler.h>
#include <accelerate/gradient_state.h>
#include <accelerate/launch.h>
#include <accelerate/local_sgd.h>
#include <accelerate/log.h>
#include <accelerate/machine.h>
#include <accelerate/megatron_lm.h>
#include <accelerate/memory.h>
#include <accelerate/model.h>
#include <accelerate/model_options.h>
#include <accelerate/model_weights.h>
#include <accelerate/nested.h>
#include <accelerate/nested_structure.h>
#include <accelerate/objects.h>
#include <accelerate/optimizer.h>
#include <accelerate/optimizers.h>
#include <accelerate/parallel.h>
#include <accelerate/parallel_options.h>
#include <accelerate/parallelism_config.h>
#include <accelerate/precision.h>
#include <accelerate/prefetch_report.h>
#include <accelerate/profiler.h>
#include <accelerate/random.h>
#include <accelerate/samplers.h>
#include <accelerate/save.h>
#include <accelerate/scheduler.h>
#include <accelerate/schedulers.h>
#include <accelerate/state_dict.h>
#include <accelerate/step_options.h>
#include <accelerate/tensor_dataset.h>
#include <accelerate/torch_loader.h>
#include <accelerate/weights.h>
#include <accelerate/world.h>
