import httpx
from tests.stack import Stack

def test_smoke(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(policy={"holdout": 0.0})
    rows = [{"id": f"e{i}", "x": [i / 10, (i % 3) / 3], "y": int(i > 10)} for i in range(20)]
    assert api.post(f"/v1/models/{name}/examples", json={"examples": rows}).status_code == 201
    assert stack.train(name) == 1
    answer = api.post(f"/v1/models/{name}/predictions", json={"inputs": [[0.1, 0.2], [1.9, 0.3]]})
    print(answer.text)
    assert answer.status_code == 200
    r=api.post(f"/v1/models/{name}/removals", json={"ids": ["e1"]}); print(r.text)
    print(api.get(f"/v1/models/{name}/versions").text)
    print(api.get(f"/v1/models/{name}/versions/1/weights"))
    print(api.delete(f"/v1/models/{name}"))
