config = {"step": "cancel-order"}


def handle(input, ctx):
    return {"cancelled": input["orderId"]}
