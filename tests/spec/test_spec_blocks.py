"""Every code block of the five specifications, and the test that proves it.

`later` names the capability that a block belongs to and that does not exist yet; such a block gets its test with it.
`shown` is a picture or a listing of files, and `replaced` describes code that its own document removes, or that belongs to a
framework that Penstock does not need.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROOMS = TESTS.parent / "src" / "penstock"
# What `later` may name, and the room that it gets: once that exists, its blocks must name their tests.
MISSING: dict[str, str] = {}

# document | section | what the block shows | how it is proved: file::test, or later, shown or replaced with the reason
BLOCKS = """
000 | 2 | architecture | shown: a picture
000 | 3 | defineNuxtConfig: every option of the module | handlers/test_discovery.py::test_every_key_of_a_config
000 | 5 | resize.ts, a plain worker | runners/test_node_specs.py::test_a_plain_worker
000 | 5 | resize.py, a plain worker | handlers/test_discovery.py::test_the_plain_worker_of_the_spec_runs_unchanged
000 | 6.2 | registration of a Nitro task | replaced: nothing is registered with Nitro, a worker finds the files itself
000 | 8 | import of defineQueueConfig | runners/test_node_specs.py::test_a_flow_with_a_triggered_step
000 | 8 | resize.ts, the main step of a flow | handlers/test_discovery.py::test_the_flow_of_the_spec_runs_unchanged
000 | 8 | thumbnail.ts, a step with triggers | handlers/test_discovery.py::test_the_flow_of_the_spec_runs_unchanged
000 | 8 | resize.py, the main step of a flow | handlers/test_discovery.py::test_the_flow_of_the_spec_runs_unchanged
000 | 9 | message envelope of a stream | http_api/test_live.py::test_jobs_on_the_queue_and_runner_sockets
000 | 11 | schema of the registry | handlers/test_discovery.py::test_the_registry_is_json_in_the_form_of_the_spec
000 | 11 | a stored registry | handlers/test_discovery.py::test_the_registry_is_json_in_the_form_of_the_spec
000 | 11 | nitro:config hook | replaced: nothing is registered with Nitro, a worker finds the files itself
000 | 14 | QueueEvent, JobInput, Job, JobsQuery, QueueProvider | spec/test_spec_stores.py::test_the_fields_of_a_job
000 | 14 | LoggerProvider | context/test_context.py::test_levels_and_fields_of_logs
000 | 14 | StateProvider | context/test_context.py::test_an_attempt_reads_what_it_wrote
000 | 14 | Runner, RunContext, StreamSink | context/test_context.py::test_the_identity_of_a_job
000 | 14 | WorkerAdapter | spec/test_spec_workers.py::test_a_worker_file_is_registered_while_a_worker_runs
000 | 14 | EventRecord, EventStoreProvider | app/test_app_events.py::test_append_and_read_any_stream
000 | 14 | EventBus | app/test_app_events.py::test_on_kind_and_on_subject
000 | 14 | EventPattern, SubscriptionRule | spec/test_spec_workers.py::test_a_subscription_rule_with_a_stream_and_a_pattern
000 | 14 | SubscriptionRule.stream | spec/test_spec_workers.py::test_a_step_that_listens_to_the_global_stream_starts_a_run_for_each_event
000 | 14 | TriggerMapResult: jobId, dedupe | spec/test_spec_workers.py::test_job_id_and_dedupe_of_a_map
000 | 14 | TriggerMapResult: delay, priority, attempts | spec/test_spec_workers.py::test_delay_priority_and_attempts_of_a_map
000 | 14 | FlowConfig, WorkerConfig | handlers/test_discovery.py::test_every_key_of_a_config
000 | 14 | BlobProvider | blobs/test_blob_stores.py::test_a_blob_in_every_form_comes_back
001 | 3.2 | canonical record | core/test_events.py::test_an_encoded_event
001 | 4.1 | ingress record of a log | spec/test_spec_events.py::test_the_events_of_a_completed_run
001 | 4.1 | canonical record of a log | spec/test_spec_events.py::test_the_events_of_a_completed_run
001 | 4.2 | flow.snapshot.patch | replaced: 003 has no projections
001 | 4.2 | flow.run.indexed | spec/test_spec_stores.py::test_an_index_entry_and_its_first_event
001 | 4.2 | flow.step.patch | replaced: 003 has no projections
001 | 4.2 | step.await.scheduled | spec/test_spec_events.py::test_the_events_of_waits
001 | 4.2 | flow.snapshot.patch while a run waits | replaced: 003 has no projections
001 | 4.2 | step.await.triggered | spec/test_spec_events.py::test_the_events_of_waits
001 | 4.2 | flow.snapshot.patch after a wait | replaced: 003 has no projections
001 | 4.2 | flow.step.log.ref | replaced: 003 has no projections
002 | Architecture | components | shown: a picture
002 | 1 | BullMQEvent | entities/test_entities.py::test_an_event_moves_an_entity
002 | 2 | BullMQConfig: connection | contracts/test_redis_connect.py::*
002 | 2 | BullMQConfig: defaultJobOptions | spec/test_spec_workers.py::test_the_default_job_options_retry_after_30_and_60_seconds
002 | 2 | BullMQConfig: events | messaging/test_messaging_definition.py::test_one_setting_chooses_the_bridge
002 | 3 | WorkflowDefinition with bullmq | messaging/test_messaging_definition.py::test_one_setting_chooses_the_bridge
002 | 4 | BullMQClient | messaging/test_spec_names.py::test_a_client_has_one_set_of_connections_and_makes_queues_when_they_are_used
002 | 5 | produce | entities/test_entities.py::test_an_event_moves_an_entity
002 | 5 | consume | entities/test_entities.py::test_concurrent_events_of_one_urn_are_applied_one_after_the_other
002 | 5 | sendToDeadLetterQueue | spec/test_spec_workers.py::test_a_dead_letter_is_the_job_of_the_specification
002 | 6 | initializeBullMQWorkers | messaging/test_spec_names.py::test_the_way_of_a_message
002 | 7 | WorkflowModule.register | messaging/test_messaging_definition.py::test_one_setting_chooses_the_bridge
002 | Data models | WorkflowJobData | entities/test_entities.py::test_an_event_moves_an_entity
002 | Data models | DLQJobData | spec/test_spec_workers.py::test_a_dead_letter_is_the_job_of_the_specification
002 | Data models | flow of a job | shown: a picture
002 | Errors | defaultJobOptions | spec/test_spec_workers.py::test_the_default_job_options_retry_after_30_and_60_seconds
002 | Errors | isHealthy | spec/test_spec_http.py::test_health_says_whether_the_store_answers
002 | Testing | integration test with Redis | spec/test_spec_workers.py::test_a_dead_letter_is_the_job_of_the_specification
002 | Migration | npm install | shown: a command of another language
002 | Migration | definition for Kafka and for BullMQ | messaging/test_messaging_definition.py::test_one_setting_chooses_the_bridge
002 | Migration | WorkflowModule.register for Kafka and for BullMQ | messaging/test_messaging_definition.py::test_one_setting_chooses_the_bridge
002 | Migration | produce for Kafka and for BullMQ | messaging/test_spec_names.py::test_messages_that_are_sent_at_once_have_ids_of_their_own
003 | 1 | architecture | shown: a picture
003 | 2.1 | envelope | core/test_events.py::test_an_encoded_event
003 | 2.2 | flow lifecycle | spec/test_spec_events.py::test_the_events_of_a_completed_run
003 | 2.2 | step lifecycle | spec/test_spec_workers.py::test_the_events_of_a_retried_step
003 | 2.2 | await patterns | spec/test_spec_events.py::test_the_events_of_waits
003 | 2.2 | trigger events | spec/test_spec_events.py::test_the_ends_of_a_trigger
003 | 2.2 | logs | spec/test_spec_events.py::test_the_events_of_a_completed_run
003 | 2.2 | state.set | flows/test_state_events.py::test_state_changes_are_recorded_with_their_commit
003 | 3.1 | pattern of stream names | core/test_events.py::test_stream_names
003 | 3.1 | stream names | core/test_events.py::test_stream_names
003 | 3.2 | indexes | spec/test_spec_stores.py::test_an_index_entry_and_its_first_event
003 | 3.3 | stream of a flow | spec/test_spec_workers.py::test_the_events_of_a_retried_step
003 | 3.4 | stream of a trigger | spec/test_spec_events.py::test_the_ends_of_a_trigger
003 | 4.2 | subscribeSubject, onKind | app/test_app_events.py::test_on_kind_and_on_subject
003 | 4.4 | GET /api/_events/:type/:id/stream | http_api/test_live.py::test_the_backlog_then_live_events
003 | 4.5 | StreamAdapter | app/test_app_events.py::test_append_and_read_any_stream
003 | 5.1 | reduceFlowState | vectors/test_vectors.py::test_a_vector
003 | 5.1 | reduceTriggerState | vectors/test_vectors.py::test_a_vector
003 | 5.2 | snapshotCache, getContextState | app/test_snapshots.py::test_a_second_look_at_a_long_run_reads_only_what_is_new
003 | 6.1 | retryPolicy | spec/test_spec_workers.py::test_the_events_of_a_retried_step
003 | 6.1 | events of a retry | spec/test_spec_workers.py::test_the_events_of_a_retried_step
003 | 6.1 | errors with retriable and retryAfter | spec/test_spec_workers.py::test_errors_that_decide_about_their_retry
003 | 6.2 | ctx.await.time | spec/test_spec_workers.py::test_a_step_waits_for_a_time
003 | 6.2 | ctx.await.event | spec/test_spec_workers.py::test_a_step_waits_for_an_event
003 | 6.2 | ctx.await.trigger | spec/test_spec_workers.py::test_a_step_waits_for_a_trigger
003 | 6.2 | AWAIT_TIMEOUT | spec/test_spec_workers.py::test_a_handler_catches_the_timeout_of_a_wait
003 | 6.3 | stored continuation | durable/test_time_waits.py::test_a_waiting_step_holds_no_slot
003 | 6.3 | event of a wait | spec/test_spec_events.py::test_the_events_of_waits
003 | 6.3 | resume from stored state | durable/test_calls.py::test_a_call_runs_once_across_a_wait
003 | 6.3 | POST /api/_flows/triggers/:triggerId | spec/test_spec_http.py::test_a_call_of_a_triggers_address_resumes_its_run_once
003 | 6.3 | implementation of a time wait | durable/test_time_waits.py::test_wait_for_a_duration
003 | 6.3 | implementation of an event wait | durable/test_event_waits.py::test_an_event_resumes_only_the_matching_run
003 | 6.4 | retry and await in one step | spec/test_spec_workers.py::test_a_step_retries_and_waits
003 | 6.5 | create-order.ts | spec/test_spec_workers.py::test_separated_steps_form_a_flow_named_after_the_first
003 | 6.5 | wait-for-payment.ts | spec/test_spec_workers.py::test_the_timeout_of_an_await_is_in_milliseconds
003 | 6.5 | fulfill-order.ts | spec/test_spec_workers.py::test_separated_steps_form_a_flow_named_after_the_first
003 | 6.5 | executeStep | spec/test_spec_workers.py::test_numbers_in_a_config_are_milliseconds
003 | 6.5 | three flows that share a step | spec/test_spec_workers.py::test_a_step_is_part_of_every_flow_that_emits_what_it_listens_to
003 | 6.5 | FlowDiagram, buildFlowDiagram | spec/test_spec_workers.py::test_a_diagram_as_data
003 | 6.5 | a drawn diagram | flows/test_wait_diagrams.py::test_the_terminal_shows_waits_also_without_unicode
003 | 6.5 | StepConfig: handler | spec/test_spec_workers.py::test_the_handler_of_a_config_is_used
003 | 6.5 | StepConfig: the other keys | spec/test_spec_workers.py::test_separated_steps_form_a_flow_named_after_the_first
003 | 7.4 | redisStreamsAdapter | spec/test_spec_stores.py::test_events_on_redis_are_a_redis_stream
003 | 8.1 | GET /api/_events/:type/list | http_api/test_routes.py::test_streams_are_listed_read_and_folded
003 | 8.2 | GET /api/_events/:type/:id | http_api/test_client.py::test_events_state_waits_and_schedules
003 | 8.3 | GET /api/_events/:type/:id/stream | http_api/test_live.py::test_clients_that_disconnect_miss_and_repeat_nothing
003 | 8.4 | POST /api/_triggers/:triggerId | spec/test_spec_http.py::test_a_call_of_a_triggers_address_resumes_its_run_once
004 | Overview | architecture | shown: a picture
004 | 1 | flow of a sub-workflow before | replaced: by the block after it
004 | 1 | flow of a sub-workflow with FlowProducer | jobs/test_job_trees.py::test_a_parent_reads_the_results_of_its_children
004 | 1 | FlowProducer in QueueManager | interop/test_node_trees.py::test_node_runs_the_parent_of_our_tree
004 | 1 | executeSubWorkflowWithFlow | dags/test_runs.py::test_a_sub_workflow_is_a_child_run_and_its_node_waits
004 | 1 | aggregator with getChildrenValues | jobs/test_job_trees.py::test_a_parent_reads_the_results_of_its_children
004 | 2 | custom rate limiting | replaced: by the block after it
004 | 2 | WorkerConfig with rateLimiter | spec/test_spec_workers.py::test_a_rate_limit_and_an_answer_that_holds_the_queue
004 | 2 | rateLimit and RateLimitError | spec/test_spec_workers.py::test_a_rate_limit_and_an_answer_that_holds_the_queue
004 | 3 | getRepeatableJobs | replaced: by the block after it
004 | 3 | upsertJobScheduler | schedules/test_schedules.py::test_a_schedule_is_replaced_and_removed
004 | 4 | failParentOnFailure, ignoreDependencyOnFailure | jobs/test_job_trees.py::test_a_failed_child_may_be_ignored
004 | 5 | files of a sandboxed processor | shown: a listing of files
004 | 5 | sandboxed processor | runners/test_process_faults.py::test_a_child_that_dies_fails_the_attempt_and_is_replaced
004 | 5 | useWorkerThreads | runners/test_process_faults.py::test_a_timeout_reaches_code_that_blocks
004 | 6 | QueueEventsProducer | replaced: by the block after it
004 | 6 | updateProgress | context/test_context.py::test_a_jobs_progress_is_on_its_row_and_on_its_queues_stream
004 | 6 | EventStreamManager | interop/test_node_events.py::test_events_of_a_node_worker
"""
ROWS = [tuple(part.strip() for part in line.split(" | ")) for line in BLOCKS.strip().splitlines()]


def test_every_block_has_four_columns_and_a_document() -> None:
    assert {len(row) for row in ROWS} == {4}
    assert {row[0] for row in ROWS} == {"000", "001", "002", "003", "004"}
    assert len(set(ROWS)) == len(ROWS)


@pytest.mark.parametrize("proof", sorted({row[3] for row in ROWS}))
def test_the_proof_of_a_block_exists(proof: str) -> None:
    word, colon, reason = proof.partition(": ")
    if colon and word in ("later", "shown", "replaced"):
        assert reason
        assert word != "later" or not (ROOMS / MISSING[reason]).exists(), f"{reason} exist now: name the test"
        return
    file, _, name = proof.partition("::")
    tree = ast.parse((TESTS / file).read_text("utf-8"))
    tests = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert name in tests or (name == "*" and any(test.startswith("test_") for test in tests))
