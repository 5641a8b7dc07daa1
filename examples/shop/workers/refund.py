"""Compensates the payment. Nothing starts it but a failure."""

from penstock import SyncContext, step


@step(queue="payments", retry=5)
def refund(undo: dict[str, dict[str, object]], ctx: SyncContext) -> dict[str, object]:
    paid = undo["result"]
    ctx.log(f"{paid['amount']} cents go back for order {paid['order']}", because=undo["error"])
    return {"refunded": paid["amount"]}
