"""Laws of the link: what is sent arrives whole and in order, and every request gets one finish."""

from __future__ import annotations

import asyncio
import gc

import numpy as np
import pytest

from overdrive.errors import OverdriveError
from overdrive.link import EngineClient, EngineEndpoint
from overdrive.types import FinishReason, GrammarSpec, SamplingParams, TopLogprobs
from overdrive.wire import (
    Abort,
    Batch,
    EngineInfo,
    Failed,
    Loading,
    Logprobs,
    Ready,
    Stats,
    Submit,
    Tokens,
)
from tests.patience import PATIENCE

INFO = EngineInfo(
    model="tiny",
    architecture="llama",
    source="",
    max_model_len=64,
    vocab_size=259,
    eos_ids=(256,),
    defaults={"temperature": 0.5},
    kv_tokens=256,
    page_size=16,
    max_rows=4,
    max_queue=8,
    drafter="none",
    drafts=0,
    precision="float32",
    threads=1,
    overlap=False,
)
PARAMS = SamplingParams(
    max_tokens=5,
    stop=(b"\xff\n", "é".encode()),
    logit_bias=((3, -100.0),),
    stop_token_ids=(256,),
    grammar=GrammarSpec("regex", "[0-9]+", after=(7, 8)),
)


@pytest.fixture
def address(tmp_path):
    return f"ipc://{tmp_path}/link"


def run_linked(address, body):
    """Runs `body(client, endpoint)` with both ends open in one event loop."""

    async def main():
        client, endpoint = EngineClient(address), EngineEndpoint(address)
        reader = asyncio.create_task(client.run())
        try:
            return await asyncio.wait_for(body(client, endpoint), PATIENCE)
        finally:
            reader.cancel()
            endpoint.close()
            client.close()

    return asyncio.run(main())


async def next_messages(endpoint):
    while not (messages := endpoint.poll()):
        await asyncio.sleep(0.001)
    return messages


async def next_message(endpoint):
    (message,) = await next_messages(endpoint)
    return message


def test_submit_and_tokens_arrive_as_sent(address):
    items = [
        Tokens(
            "a", [1, 2], accepted=1, offered=3, logprobs=Logprobs([-0.5, -1.0], [1, 2], [[1], [5]], [[-0.5], [-0.1]])
        ),
        Tokens("a", [256], finish=FinishReason.STOP, stop_token=256, cached_tokens=16),
    ]

    async def body(client, endpoint):
        endpoint.send(Loading("weights", 1, 2))
        endpoint.send(Ready(INFO))
        assert await client.ready() == INFO
        reply = client.submit([Submit("a", [7, 8], PARAMS, 1.5)])
        assert await next_message(endpoint) == Submit("a", [7, 8], PARAMS, 1.5)
        for item in items:
            endpoint.send(Batch([item, Tokens("stranger", [9])]))
        endpoint.send(Stats(running=3))
        assert [item async for item in reply] == items
        while client.stats.running != 3:
            await asyncio.sleep(0.001)
        assert client.active == 0
        assert endpoint.poll(0.05) == []  # a finished request is not aborted

    run_linked(address, body)


def test_a_reply_left_early_is_aborted_once(address):
    async def body(client, endpoint):
        reply = client.submit([Submit("a", [7], PARAMS, 0.0)])
        assert isinstance(await next_message(endpoint), Submit)
        endpoint.send(Batch([Tokens("a", [1])]))
        await anext(reply)
        reply.abort()
        reply.abort()
        assert await next_message(endpoint) == Abort("a")
        assert endpoint.poll(0.05) == []
        assert client.active == 0

    run_linked(address, body)


def test_requests_submitted_together_end_together(address):
    async def body(client, endpoint):
        reply = client.submit([Submit("a", [7], PARAMS, 0.0), Submit("b", [7], PARAMS, 0.0)])
        endpoint.send(Batch([Tokens("b", [1]), Tokens("a", [2], finish=FinishReason.LENGTH)]))
        endpoint.send(Batch([Tokens("b", [3], finish=FinishReason.LENGTH)]))
        assert [(item.id, item.ids) async for item in reply] == [("b", [1]), ("a", [2]), ("b", [3])]

    run_linked(address, body)


def test_a_failed_start_is_one_line(address):
    async def body(client, endpoint):
        endpoint.send(Failed("no such model: x"))
        with pytest.raises(OverdriveError, match="no such model: x"):
            await client.ready()

    run_linked(address, body)


def test_death_of_the_engine_finishes_every_request_with_an_error(address):
    async def body(client, endpoint):
        endpoint.send(Ready(INFO))
        await client.ready()
        early = client.submit([Submit("a", [7], PARAMS, 0.0)])
        client.fail("the engine process ended")
        late = client.submit([Submit("late", [7], PARAMS, 0.0)])
        for item in (await anext(early), await anext(late)):
            assert (item.finish, item.error) == (FinishReason.ERROR, "the engine process ended")
        assert client.active == 0

    run_linked(address, body)


def test_who_waits_for_statistics_goes_on_when_the_engine_ends(address):
    async def body(client, endpoint):
        waiting = asyncio.create_task(client.next_stats())
        await asyncio.sleep(0)
        client.fail("the engine process ended")
        assert await asyncio.wait_for(waiting, 60) is client.stats

    run_linked(address, body)


def test_logprobs_of_arrays_are_cut_to_count():
    arrays = TopLogprobs(
        chosen=np.array([-1.0, -2.0], np.float32),
        ranks=np.array([1, 4], np.int32),
        top_ids=np.array([[3, 4], [5, 6]]),
        top=np.array([[-1.0, -1.5], [-0.5, -1.0]], np.float32),
    )
    assert Logprobs.of(arrays, 1) == Logprobs([-1.0], [1], [[3, 4]], [[-1.0, -1.5]])


def test_an_engine_that_nobody_waits_for_any_more_ends_in_silence(address) -> None:
    """As when a server is told to end while its model loads: asyncio has nothing to complain about."""
    complaints = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        client = EngineClient(address)
        client.fail("the engine was stopped")
        client.close()
        with pytest.raises(OverdriveError, match="was stopped"):
            await client.ready()
        other = EngineClient(address + "2")
        other.fail("the engine was stopped")
        other.close()
        del other
        gc.collect()

    asyncio.run(main())
    assert not complaints
